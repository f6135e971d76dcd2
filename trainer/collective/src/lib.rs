//! Features of libtorch that tch lacks, behind a small safe interface: c10d's store, collectives
//! over Gloo and, with feature `cuda`, NCCL; fused AdamW, a linear layer for few rows,
//! deterministic mode.
//!
//! It has tensors and ranks, but no models or training.
//!
//! ```text
//!  rank 0: Store::host ────┐
//!  ranks:  Store::connect ─┴─▶ Group::join ──▶ all_gather, reduce_scatter, all_reduce,
//!                              broadcast, barrier: each with a timeout and an error that names
//!                              operation and rank
//!          DeviceGroup::join ──▶ collectives on a stream of the GPU, ordered by DeviceEvents
//!  sender and engine: join_weight_update of either (SGLang's key layout)
//! ```
//! One store serves many process groups, each with a separate key prefix.

mod adamw;
mod error;
mod ffi;
mod group;
mod linear;
mod member;
mod nccl;
#[cfg(feature = "cuda")]
mod nccl_ffi;
mod settings;
mod store;

pub use adamw::{AdamW, fused_adamw};
pub use error::CollectiveError;
pub use group::Group;
pub use linear::{linear, linear_by_rows};
pub use nccl::{DeviceEvent, DeviceGroup, Stream};
pub use settings::{keep_freed_memory, set_deterministic, set_num_threads};
pub use store::Store;
