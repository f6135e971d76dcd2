//! Page-locked memory for the snapshots of models on a GPU.
//!
//! It is kept for as long as the learner lives: to allocate 18.5 GB took ten seconds on a machine
//! with two H200s, as long as a copy without it. A thread allocates it while engines start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rljob_crds::algorithm::ModelRole;
use rljob_kernels::KernelError;
use rljob_kernels::pinned::HostCopy;
use tch::Device;

/// Memory by role; empty for models on a CPU.
#[derive(Debug, Default)]
pub struct SnapshotMemory(BTreeMap<ModelRole, Memory>);

#[derive(Debug)]
enum Memory {
    Allocating(JoinHandle<Result<HostCopy, KernelError>>),
    Allocated(Arc<HostCopy>),
}

impl SnapshotMemory {
    /// Begins to allocate the bytes of each role's snapshots on `device`.
    pub fn begin(device: Device, bytes: impl Iterator<Item = (ModelRole, usize)>) -> Self {
        let allocate = |(role, bytes): (ModelRole, usize)| {
            let thread = thread::Builder::new().name("snapshots".to_owned());
            // Without a thread, the first snapshot allocates it.
            let handle = thread.spawn(move || HostCopy::new(bytes)).ok()?;
            Some((role, Memory::Allocating(handle)))
        };
        Self(if device.is_cuda() { bytes.filter_map(allocate).collect() } else { BTreeMap::new() })
    }

    /// Memory of `bytes` for a snapshot of `role`: that of an earlier one which no writer reads, if
    /// it fits.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub(super) fn take(&mut self, role: ModelRole, bytes: usize) -> Result<HostCopy, KernelError> {
        let kept = match self.0.remove(&role) {
            Some(Memory::Allocating(thread)) => thread.join().ok().transpose()?,
            Some(Memory::Allocated(copy)) => Arc::into_inner(copy),
            None => None,
        };
        match kept.filter(|copy| copy.length() == bytes) {
            Some(copy) => Ok(copy),
            None => HostCopy::new(bytes),
        }
    }

    /// Keeps the memory of a snapshot for the next one.
    pub(super) fn keep(&mut self, role: ModelRole, copy: Arc<HostCopy>) {
        self.0.insert(role, Memory::Allocated(copy));
    }
}
