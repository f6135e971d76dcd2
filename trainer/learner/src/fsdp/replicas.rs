//! Sum of gradients over the replicas of a model (hybrid sharding: Zhao et al. 2023, arXiv
//! 2304.11277).
//!
//! ```text
//!  passes   gradients of blocks ── reduce-scatter in each replica ──▶ added to the shards
//!  update   shards ── all-reduce over the ranks with the same shard ──▶ equal in all replicas
//! ```
//! Each rank gets the same bits, so that weights and moments of replicas stay equal.

use rljob_collective::{CollectiveError, DeviceEvent, Stream};
use tch::Tensor;

use super::shards::failed;
use crate::model::ModelError;
use crate::ranks::Ranks;

/// Sums `gradients`, this rank's shard of each block, over the replicas in place: on a GPU after
/// libtorch's earlier operations and before its later ones. A collective.
///
/// # Errors
/// CUDA, or the collective fails.
pub fn sum_over_replicas<'a>(
    ranks: &Ranks,
    gradients: impl Iterator<Item = &'a Tensor>,
) -> Result<(), ModelError> {
    if let Some(group) = ranks.replica_device_group() {
        let event = DeviceEvent::new().map_err(order_failed)?;
        pass_on(&event, Stream::Compute, Stream::Of(group))?;
        sum_each(gradients, |gradient| group.all_reduce(gradient))?;
        return pass_on(&event, Stream::Of(group), Stream::Compute);
    }
    match ranks.replica_group() {
        Some(group) => sum_each(gradients, |gradient| group.all_reduce(gradient)),
        None => Ok(()),
    }
}

fn sum_each<'a>(
    gradients: impl Iterator<Item = &'a Tensor>,
    all_reduce: impl Fn(&Tensor) -> Result<(), CollectiveError>,
) -> Result<(), ModelError> {
    gradients.enumerate().try_for_each(|(block, gradient)| {
        all_reduce(gradient).map_err(|error| sum_failed(block, error))
    })
}

/// Lets the later work of stream `to` wait for the earlier work of stream `from`.
fn pass_on(event: &DeviceEvent, from: Stream<'_>, to: Stream<'_>) -> Result<(), ModelError> {
    event.record(from).and_then(|()| event.wait(to)).map_err(order_failed)
}

/// The error of an event, which orders the sums of all blocks, from the first.
fn order_failed(error: CollectiveError) -> ModelError {
    failed("order the all-reduce of the gradient", 0, error)
}

fn sum_failed(block: usize, error: CollectiveError) -> ModelError {
    failed("all-reduce the gradient", block, error)
}
