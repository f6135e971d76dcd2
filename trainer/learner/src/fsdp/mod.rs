//! Fully sharded parameters (Zhao et al. 2023, arXiv 2304.11277): each rank keeps a shard of every
//! block in fp32; a block is gathered only while it runs.
//!
//! ```text
//!  flat vector of a block, padded   │ rank 0 │ rank 1 │ … │
//!  weights(b)        all-gather in the compute kind     master shards ──▶ whole block
//!  add_gradient(b)   reduce-scatter, a sum in fp32      whole gradient ──▶ added to the shard
//! ```
//! With `Sharding::Gradients` (ZeRO-2: Rajbhandari et al. 2020, arXiv 1910.02054) blocks stay
//! gathered until the update, and the gradients of the minibatch's passes are added on each rank
//! before they are summed over the ranks once. With `Sharding::Hybrid` the ranks above are those of
//! a replica, a row of the [`crate::mesh`], and the shards' gradients are summed over the replicas
//! before the update ([`replicas`]).
//!
//! On a CPU both calls return when they are done. On a GPU, [`gathered`] and [`reduced`] run them
//! beside the computation, and the shards of all blocks are one vector each ([`flat`]). Frozen
//! weights ([`FrozenParameters`]) are kept in the compute kind and have no gradient. Adapters over
//! them are merged when a pass gets a block ([`AdaptedParameters`]).
//!
//! Blocks are flat vectors here, regardless of their tensors. One shard needs no gather and no
//! reduce-scatter.

mod adapted;
mod flat;
mod frozen;
mod gathered;
mod held;
mod reduced;
mod replicas;
mod sharded;
mod shards;
mod trained;

pub use adapted::{AdaptedParameters, Base};
pub use flat::Flat;
pub use frozen::FrozenParameters;
pub use sharded::{DeviceVectors, Passes, Shard, ShardedParameters};
pub use shards::{Buffers, into_shard, shard_numel, shard_of};
pub use trained::TrainedParameters;

#[cfg(test)]
mod tests;
