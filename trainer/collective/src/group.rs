//! Process group with collectives over Gloo. Calls block until completion or the timeout of the
//! process group, which is unusable after an error.

use std::time::Duration;

use tch::{Kind, Tensor};

use crate::ffi::GroupHandle;
use crate::store::milliseconds;
use crate::{CollectiveError, Store};

/// A member's handle of a process group. Every member must make the same calls in the same order
/// with tensors of the same shapes and kinds.
#[derive(Debug)]
pub struct Group {
    handle: GroupHandle,
    name: String,
    rank: u32,
    world_size: u32,
}

impl Group {
    /// Joins process group `name` as `rank` of `world_size`, listening on `address`, a name or
    /// address of this machine that peers can reach.
    ///
    /// Returns when every member has joined. `timeout` also applies to each collective. A store
    /// accepts each `name` once.
    ///
    /// # Errors
    /// The store is unreachable, or a member does not join in time.
    pub fn join(
        store: &Store,
        name: &str,
        rank: u32,
        world_size: u32,
        address: &str,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        Self::join_under(store, name, &[name.to_owned()], rank, world_size, address, timeout)
    }

    /// Joins weight-update process group `name` with the key layout of SGLang's
    /// `init_custom_process_group` (`python/sglang/srt/utils/common.py`): prefixes `name`, `name/`
    /// and `cpu/`.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_weight_update(
        store: &Store,
        name: &str,
        rank: u32,
        world_size: u32,
        address: &str,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let prefixes = [name.to_owned(), format!("{name}/"), "cpu/".to_owned()];
        Self::join_under(store, name, &prefixes, rank, world_size, address, timeout)
    }

    fn join_under(
        store: &Store,
        name: &str,
        prefixes: &[String],
        rank: u32,
        world_size: u32,
        address: &str,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let failed = |message| CollectiveError {
            operation: format!("join process group `{name}` from {address}"),
            place: format!("rank {rank} of {world_size}"),
            message,
        };
        if rank >= world_size {
            return Err(failed("the rank must be below the world size".to_owned()));
        }
        let handle = GroupHandle::new(
            &store.handle,
            prefixes,
            rank as i32,
            world_size as i32,
            address,
            milliseconds(timeout),
        )
        .map_err(failed)?;
        Ok(Self { handle, name: name.to_owned(), rank, world_size })
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Sums `tensor` over the ranks, in place, with the same bits on every rank.
    ///
    /// # Errors
    /// A peer disconnects, or the timeout expires.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.handle.all_reduce(tensor).map_err(|message| self.failed("all-reduce", tensor, message))
    }

    /// Concatenates every rank's flat `input` `[n]` into `out` `[n × world size]`, in order of
    /// rank.
    ///
    /// # Errors
    /// Sizes do not match, a peer disconnects, or the timeout expires.
    pub fn all_gather(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.check_sizes("all-gather", out, input)?;
        self.handle
            .all_gather(&bytes(out), &bytes(input))
            .map_err(|message| self.failed("all-gather", input, message))
    }

    /// Sums `input` `[n × world size]` over the ranks and writes this rank's part of the sum to
    /// `out` `[n]`.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    pub fn reduce_scatter(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.check_sizes("reduce-scatter", input, out)?;
        self.handle
            .reduce_scatter(out, input)
            .map_err(|message| self.failed("reduce-scatter", input, message))
    }

    /// Copies the `tensor` of rank `root` to every rank, in place, for any kind.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<(), CollectiveError> {
        self.handle
            .broadcast(&bytes(tensor), root as i32)
            .map_err(|message| self.failed("broadcast", tensor, message))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.handle.barrier().map_err(|message| self.error("barrier".to_owned(), message))
    }

    fn check_sizes(
        &self,
        operation: &str,
        whole: &Tensor,
        part: &Tensor,
    ) -> Result<(), CollectiveError> {
        let contiguous = whole.is_contiguous() && part.is_contiguous();
        if contiguous
            && whole.kind() == part.kind()
            && whole.numel() == part.numel() * self.world_size as usize
        {
            return Ok(());
        }
        let message = format!(
            "whole {whole:?} and part {part:?} must be contiguous, of one kind, \
             and whole must be {} times as long as part",
            self.world_size
        );
        Err(self.error(operation.to_owned(), message))
    }

    fn failed(&self, operation: &str, tensor: &Tensor, message: String) -> CollectiveError {
        self.error(format!("{operation} {:?} {:?}", tensor.kind(), tensor.size()), message)
    }

    fn error(&self, operation: String, message: String) -> CollectiveError {
        let place =
            format!("rank {} of {} in process group `{}`", self.rank, self.world_size, self.name);
        CollectiveError { operation, place, message }
    }
}

/// bf16 as fp16 with the same bits, because Gloo supports bf16 in some operations only. Valid where
/// no values are added.
fn bytes(tensor: &Tensor) -> Tensor {
    if tensor.kind() == Kind::BFloat16 {
        tensor.view_dtype(Kind::Half)
    } else {
        tensor.shallow_clone()
    }
}
