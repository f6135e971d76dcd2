//! HTTP servers and reads with limits, signals that stop servers, mutual TLS between the roles of a
//! job, and TLS of clients of servers outside the job.
//!
//! ```text
//!  accept ─▶ Connections ── room, or the oldest idle connection is closed ─▶ task
//!              TLS for all routes but probes and metrics
//!              header and idle timeout · body timeout · TCP keepalive
//! ```
//!
//! A client that opens many connections, sends slowly or stops reading occupies at most the limit
//! of connections, and idle ones make room for new ones: probes and metrics are always answered.
//! Certificates: docs/decisions/0013.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod authority;
mod connections;
mod identity;
mod outside;
mod read;
mod role;
mod serve;
mod stop;
#[cfg(test)]
mod tests;
mod tls;

pub use authority::{Authority, AuthorityError, SEED_BYTES};
pub use identity::TlsError;
pub use outside::{
    AuthoritiesError, check_authorities, local_authorities, outside_client, outside_tls, untrusted,
};
pub use read::{ReadError, read};
pub use role::Role;
pub use serve::{Limits, Routes, configure, listen, serve};
pub use stop::StopSignals;
pub use tls::{ClientTls, ServerTls, is_plain_server};
