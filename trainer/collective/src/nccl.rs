//! Process group with collectives over NCCL, for tensors on a GPU.
//!
//! ```text
//!  stream of libtorch   … ops ─ record(a) ──────────────── wait(b) ─ ops …
//!  stream of the group              wait(a) ─ all-gather ─ record(b)
//! ```
//! Calls enqueue work on the group's stream and return. [`DeviceEvent`]s order it with libtorch's
//! operations; the host waits in [`DeviceGroup::finish`] only. Without feature `cuda`, joining is
//! an error.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tch::Tensor;

use crate::member::Member;
use crate::{CollectiveError, Store};

#[cfg(feature = "cuda")]
use crate::nccl_ffi::{EventHandle, NcclHandle};

/// Stands for a handle in builds without CUDA, where none is ever made.
#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
enum NcclHandle {}

#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
enum EventHandle {}

/// A stream that an event is recorded on, or that waits for one.
#[derive(Clone, Copy, Debug)]
pub enum Stream<'a> {
    /// That of libtorch's operations of this thread.
    Compute,
    /// That of a group's collectives.
    Of(&'a DeviceGroup),
}

/// A member's handle of a process group on GPUs. Every member must make the same calls in the same
/// order with contiguous tensors of the same shapes and kinds: float64, float32, bfloat16 or uint8.
#[derive(Debug)]
pub struct DeviceGroup {
    handle: NcclHandle,
    member: Member,
}

/// A point in the work of a stream.
#[derive(Debug)]
pub struct DeviceEvent {
    handle: EventHandle,
}

impl DeviceGroup {
    /// Joins process group `name` as `rank` of `world_size` with GPU `device` of this process.
    ///
    /// Returns when every member has joined, however long it takes. `timeout` applies to the store
    /// and to [`Self::finish`]. A store accepts each `name` once.
    ///
    /// # Errors
    /// The store is unreachable, a member fails, or the build has no CUDA.
    pub fn join(
        store: &Store,
        name: &str,
        (rank, world_size): (u32, u32),
        device: usize,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let prefixes = [name.to_owned(), "cuda".to_owned()];
        Self::join_under(store, name, &prefixes, (rank, world_size), (device, true), timeout)
    }

    /// Joins weight-update process group `name` with the key layout of SGLang's
    /// `init_custom_process_group`: prefixes `name`, `name/` and `cuda/`. SGLang creates its
    /// communicator at the first broadcast, so that this call waits for one, at most for `timeout`.
    ///
    /// # Errors
    /// As [`Self::join`], or the engine does not join in time.
    pub fn join_weight_update(
        store: &Store,
        name: &str,
        (rank, world_size): (u32, u32),
        device: usize,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let prefixes = [name.to_owned(), format!("{name}/"), "cuda/".to_owned()];
        Self::join_under(store, name, &prefixes, (rank, world_size), (device, false), timeout)
    }

    fn join_under(
        store: &Store,
        name: &str,
        prefixes: &[String],
        (rank, world_size): (u32, u32),
        (device, blocking): (usize, bool),
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let member = Member { name: name.to_owned(), rank, world_size };
        let ranks = (rank, world_size);
        let connect = || NcclHandle::new(store, prefixes, ranks, device, blocking, timeout);
        let (member, handle) = member.join(&format!("with GPU {device}"), connect)?;
        Ok(Self { handle, member })
    }

    /// Concatenates every rank's flat `input` `[n]` into `out` `[n × world size]`, in order of
    /// rank. `input` may be this rank's part of `out`.
    ///
    /// # Errors
    /// Sizes do not match, or the group has failed.
    pub fn all_gather(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.member.check_sizes("all-gather", out, input)?;
        self.member.of_tensor("all-gather", input, self.handle.all_gather(out, input))
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

    /// Sums `tensor` over the ranks, in place.
    ///
    /// # Errors
    /// The group has failed.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.member.of_tensor("all-reduce", tensor, self.handle.all_reduce(tensor))
    }

    /// Copies the `tensor` of rank `root` to every rank, in place.
    ///
    /// # Errors
    /// The group has failed.
    pub fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<(), CollectiveError> {
        self.member.of_tensor("broadcast", tensor, self.handle.broadcast(tensor, root))
    }

    /// Adds `term` to `sum` after the group's earlier operations.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn add(&self, sum: &Tensor, term: &Tensor) -> Result<(), CollectiveError> {
        self.member.of_tensor("add", sum, self.handle.add(sum, term))
    }

    /// Copies `input` to `out` of the same shape, converted to its kind, after the group's earlier
    /// operations.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn copy(&self, out: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.member.of_tensor("copy", input, self.handle.copy(out, input))
    }

    /// Waits on the host until all operations are complete.
    ///
    /// # Errors
    /// The group failed or timed out. Its operations are aborted.
    pub fn finish(&self) -> Result<(), CollectiveError> {
        self.member.result("complete operations".to_owned(), self.handle.finish(None))
    }

    /// As [`Self::finish`], until `given_up` is true: a peer that ended or was replaced never takes
    /// its part, and operations that wait for it hold up others of this GPU that need all of it,
    /// such as releasing memory.
    ///
    /// # Errors
    /// The group failed, timed out or was given up. Its operations are aborted.
    pub fn finish_unless(&self, given_up: &AtomicBool) -> Result<(), CollectiveError> {
        self.member.result("complete operations".to_owned(), self.handle.finish(Some(given_up)))
    }
}

impl DeviceEvent {
    /// An event that no stream has recorded; waiting for it is over at once.
    ///
    /// # Errors
    /// CUDA fails, or the build has none.
    pub fn new() -> Result<Self, CollectiveError> {
        EventHandle::new().map(|handle| Self { handle }).map_err(|message| failed("make", message))
    }

    /// Moves the event to the end of the stream's work.
    ///
    /// # Errors
    /// CUDA fails.
    pub fn record(&self, stream: Stream<'_>) -> Result<(), CollectiveError> {
        self.handle.record(handle(stream)).map_err(|message| failed("record", message))
    }

    /// Lets later work of the stream wait for the event.
    ///
    /// # Errors
    /// CUDA fails.
    pub fn wait(&self, stream: Stream<'_>) -> Result<(), CollectiveError> {
        self.handle.wait(handle(stream)).map_err(|message| failed("wait for", message))
    }
}

fn handle(stream: Stream<'_>) -> Option<&NcclHandle> {
    match stream {
        Stream::Compute => None,
        Stream::Of(group) => Some(&group.handle),
    }
}

fn failed(action: &str, message: String) -> CollectiveError {
    let operation = format!("{action} an event");
    CollectiveError { operation, place: "a stream of the GPU".to_owned(), message }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use super::{AtomicBool, Duration, EventHandle, NcclHandle, Store, Tensor};

    fn missing<T>() -> Result<T, String> {
        Err("this build has no CUDA".to_owned())
    }

    impl NcclHandle {
        pub fn new(
            _: &Store,
            _: &[String],
            _: (u32, u32),
            _: usize,
            _: bool,
            _: Duration,
        ) -> Result<Self, String> {
            missing()
        }

        pub fn all_gather(&self, _: &Tensor, _: &Tensor) -> Result<(), String> {
            match *self {}
        }

        pub fn reduce_scatter(&self, _: &Tensor, _: &Tensor) -> Result<(), String> {
            match *self {}
        }

        pub fn all_reduce(&self, _: &Tensor) -> Result<(), String> {
            match *self {}
        }

        pub fn broadcast(&self, _: &Tensor, _: u32) -> Result<(), String> {
            match *self {}
        }

        pub fn add(&self, _: &Tensor, _: &Tensor) -> Result<(), String> {
            match *self {}
        }

        pub fn copy(&self, _: &Tensor, _: &Tensor) -> Result<(), String> {
            match *self {}
        }

        pub fn finish(&self, _: Option<&AtomicBool>) -> Result<(), String> {
            match *self {}
        }
    }

    impl EventHandle {
        pub fn new() -> Result<Self, String> {
            missing()
        }

        pub fn record(&self, _: Option<&NcclHandle>) -> Result<(), String> {
            match *self {}
        }

        pub fn wait(&self, _: Option<&NcclHandle>) -> Result<(), String> {
            match *self {}
        }
    }
}
