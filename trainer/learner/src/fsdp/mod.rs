//! Fully sharded parameters (Zhao et al. 2023, arXiv 2304.11277): each rank keeps a shard of every
//! block in fp32; a block is gathered only while it runs.
//!
//! ```text
//!  flat vector of a block, padded   │ rank 0 │ rank 1 │ … │
//!  weights(b)        all-gather in the compute kind     master shards ──▶ whole block
//!  add_gradient(b)   reduce-scatter, a sum in fp32      whole gradient ──▶ added to the shard
//! ```
//! On a CPU both calls return when they are done. On a GPU, [`gathered`] and [`reduced`] run them
//! beside the computation, and the shards of all blocks are one vector each ([`flat`]). Frozen
//! weights ([`FrozenParameters`]) are kept in the compute kind and have no gradient.
//!
//! Blocks are flat vectors here, regardless of their tensors. A world size of 1 uses no
//! collectives.

mod flat;
mod frozen;
mod gathered;
mod reduced;
mod sharded;
mod shards;

pub use flat::Flat;
pub use frozen::FrozenParameters;
pub use sharded::{DeviceVectors, Shard, ShardedParameters};
pub use shards::{shard_numel, shard_of};

#[cfg(test)]
mod tests;
