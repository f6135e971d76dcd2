//! Cache of observed objects: children by name, pods by job, from watches and from the responses to
//! the operator's own writes. Passes read it and send no requests.
//!
//! ```text
//!  watches ([`watch`]) ───▶ Table<ObservedChild> per kind ─┐
//!                           Table<Pod> by job ─────────────┼─▶ observe
//!  responses to writes ────────────────────────────────────┘
//!                           every change ─▶ a pass of the job that it belongs to
//! ```
//!
//! Versions never decrease ([`table`]), so a pass never acts on a state older than the operator's
//! own last write. The cache holds labelled objects only: a name that it lacks may be taken.

mod child;
mod health;
mod pod;
mod store;
mod table;
mod watch;

pub use child::{DesiredChild, ObservedChild, number, owner};
pub use health::WatchHealth;
pub use pod::Pod;
pub use store::Cache;
pub use watch::{WATCH_SECONDS, changes, config};
