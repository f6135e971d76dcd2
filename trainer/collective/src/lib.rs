//! What tch lacks, behind a small safe interface: c10d's store and Gloo collectives, fused AdamW, a
//! linear layer for few rows, the deterministic switch.
//!
//! This is the only crate with C++ and `unsafe`. It knows tensors and ranks, nothing of models or
//! training.
//!
//! ```text
//!  rank 0: Store::host ──┐                      ┌── all_gather, reduce_scatter, all_reduce, broadcast, barrier
//!  ranks:  Store::connect┴─▶ Group::join ───────┤   each with the group's timeout, each error naming operation and rank
//!  sender and engine:    └─▶ Group::join_weight_update (SGLang's key layout)
//! ```
//! One store serves many groups; every group sees it under its own prefix.

mod adamw;
mod error;
mod ffi;
mod group;
mod linear;
mod settings;
mod store;

pub use adamw::{AdamW, fused_adamw};
pub use error::CollectiveError;
pub use group::Group;
pub use linear::{linear, linear_by_rows};
pub use settings::{keep_freed_memory, set_deterministic, set_num_threads};
pub use store::Store;
