//! HTTP servers and reads with limits, for all processes.
//!
//! ```text
//!  accept ─▶ Connections ── room, or the oldest idle connection is closed ─▶ task
//!              header and idle timeout · body timeout · TCP keepalive
//! ```
//!
//! A client that opens many connections, sends slowly or stops reading occupies at most the limit
//! of connections, and idle ones make room for new ones: probes and metrics are always answered.

mod connections;
mod read;
mod serve;

pub use read::{ReadError, read};
pub use serve::{Limits, serve};
