//! Process group with collectives over Gloo. Calls block until completion or the timeout of the
//! process group, which is unusable after an error.

use std::time::Duration;

use tch::{Kind, Tensor};

use crate::ffi::GroupHandle;
use crate::member::Member;
use crate::store::milliseconds;
use crate::{CollectiveError, Store};

/// A member's handle of a process group. Every member must make the same calls in the same order
/// with tensors of the same shapes and kinds.
#[derive(Debug)]
pub struct Group {
    handle: GroupHandle,
    member: Member,
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
        let member = Member { name: name.to_owned(), rank, world_size };
        let connect = || {
            let (rank, world_size) = (rank as i32, world_size as i32);
            let timeout = milliseconds(timeout);
            GroupHandle::new(&store.handle, prefixes, rank, world_size, address, timeout)
        };
        let (member, handle) = member.join(&format!("from {address}"), connect)?;
        Ok(Self { handle, member })
    }

    pub fn rank(&self) -> u32 {
        self.member.rank
    }

    pub fn world_size(&self) -> u32 {
        self.member.world_size
    }

    /// Sums `tensor` over the ranks, in place, with the same bits on every rank.
    ///
    /// # Errors
    /// A peer disconnects, or the timeout expires.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.member.of_tensor("all-reduce", tensor, self.handle.all_reduce(tensor))
    }

    /// Concatenates every rank's flat `input` `[n]` into `out` `[n × world size]`, in order of
    /// rank.
    ///
    /// # Errors
    /// Sizes do not match, a peer disconnects, or the timeout expires.
    pub fn all_gather(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.member.check_sizes("all-gather", out, input)?;
        let gathered = self.handle.all_gather(&bytes(out), &bytes(input));
        self.member.of_tensor("all-gather", input, gathered)
    }

    /// Sums `input` `[n × world size]` over the ranks and writes this rank's part of the sum to
    /// `out` `[n]`.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    pub fn reduce_scatter(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.member.check_sizes("reduce-scatter", input, out)?;
        self.member.of_tensor("reduce-scatter", input, self.handle.reduce_scatter(out, input))
    }

    /// Copies the `tensor` of rank `root` to every rank, in place, for any kind.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<(), CollectiveError> {
        let sent = self.handle.broadcast(&bytes(tensor), root as i32);
        self.member.of_tensor("broadcast", tensor, sent)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.member.result("barrier".to_owned(), self.handle.barrier())
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
