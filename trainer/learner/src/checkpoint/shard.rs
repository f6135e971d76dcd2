//! One rank's part of a checkpoint: a snapshot in host memory, written as safetensors files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use rljob_crds::algorithm::ModelRole;
use rljob_kernels::KernelError;
use rljob_kernels::pinned::HostCopy;
use rljob_protocol::checkpoint::ObjectiveState;
use safetensors::tensor::{Dtype, View};
use tch::{Device, Kind, Tensor};

use super::files::{PARTS, Piece, file_names};
use super::manifest::{FileEntry, OptimizerProgress, commit, measure, role_name, temporary};
use super::{CheckpointError, SnapshotMemory};

/// Elements that are copied between a tensor and bytes at a time.
pub const CHUNK: usize = 4 << 20;

/// A copy of a rank's shards of every trained model in host memory.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub objective: ObjectiveState,
    models: BTreeMap<ModelRole, ModelSnapshot>,
}

#[derive(Debug)]
struct ModelSnapshot {
    optimizer: OptimizerProgress,
    /// By block: master weights, first and second moment, as little-endian fp32.
    blocks: Vec<[HostBytes; 3]>,
}

#[derive(Debug)]
enum HostBytes {
    Owned(Vec<u8>),
    /// Part of a copy that the GPU may still be making.
    Pinned(Arc<HostCopy>, Range<usize>),
}

impl HostBytes {
    fn wait(&self) -> Result<&[u8], CheckpointError> {
        match self {
            Self::Owned(bytes) => Ok(bytes),
            Self::Pinned(copy, range) => Ok(copy.wait()?.get(range.clone()).unwrap_or_default()),
        }
    }
}

impl Snapshot {
    /// Adds a copy of a model's fp32 shards: `blocks`, each with its two moments. If they are on a
    /// GPU, it copies them into `memory` before its next operations, while the caller continues.
    ///
    /// # Errors
    /// libtorch or CUDA cannot copy a tensor.
    pub fn add<'a>(
        &mut self,
        role: ModelRole,
        optimizer: OptimizerProgress,
        blocks: impl Iterator<Item = [&'a Tensor; 3]>,
        memory: &mut SnapshotMemory,
    ) -> Result<(), CheckpointError> {
        let blocks: Vec<_> = blocks.map(|parts| parts.map(Tensor::shallow_clone)).collect();
        let device = blocks.first().map(|[weights, ..]| weights.device());
        let blocks = match device {
            Some(Device::Cuda(index)) => match pinned(role, &blocks, memory) {
                Ok(copied) => copied,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "training waits for copies of checkpoints without pinned memory"
                    );
                    // Threads have other streams than this one.
                    tch::Cuda::synchronize(index as i64);
                    pageable(blocks)?
                }
            },
            _ => pageable(blocks)?,
        };
        self.models.insert(role, ModelSnapshot { optimizer, blocks });
        Ok(())
    }

    /// State of the optimizers without moments, by role.
    pub fn progress(&self) -> impl Iterator<Item = (ModelRole, OptimizerProgress)> {
        self.models.iter().map(|(role, model)| (*role, model.optimizer))
    }

    /// Writes the files of rank `rank` into `folder`, syncs them and computes their checksums by
    /// reading them back. `division` has the tensors of each file.
    ///
    /// # Errors
    /// A file operation fails.
    pub fn write(
        self,
        folder: &Path,
        (rank, world_size): (u32, u32),
        division: &[Vec<Piece>],
    ) -> Result<Vec<FileEntry>, CheckpointError> {
        fs::create_dir_all(folder).map_err(|error| CheckpointError::io("create", folder, error))?;
        let models = self.models.into_iter();
        let mut tensors = models.flat_map(|(role, model)| {
            model.blocks.into_iter().enumerate().flat_map(move |(block, parts)| {
                let parts = PARTS.iter().zip(parts);
                parts.map(move |(part, bytes)| (tensor_name(role, block, part), bytes))
            })
        });
        let names = file_names(rank, world_size, division.len());
        let files = names.into_iter().zip(division);
        let files = files.map(|(name, of)| (name, tensors.by_ref().take(of.len()).collect()));
        let files: Vec<(String, Vec<(String, HostBytes)>)> = files.collect();
        files.into_par_iter().map(|(name, tensors)| write_file(folder, &name, &tensors)).collect()
    }
}

fn write_file(
    folder: &Path,
    name: &str,
    tensors: &[(String, HostBytes)],
) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(name);
    let partial = temporary(&path);
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, bytes)| Ok((name, HostTensor::new(bytes.wait()?))))
        .collect::<Result<_, CheckpointError>>()?;
    safetensors::serialize_to_file(views, None, &partial)
        .map_err(|error| CheckpointError::io("write", &partial, std::io::Error::other(error)))?;
    File::open(&partial)
        .and_then(|file| file.sync_all())
        .map_err(|error| CheckpointError::io("sync", &partial, error))?;
    commit(&partial, &path)?;
    measure(folder, name)
}

/// Name of a block's part in the file; without a prefix for the policy.
pub fn tensor_name(role: ModelRole, block: usize, part: &str) -> String {
    match role {
        ModelRole::Policy => format!("block.{block}.{part}"),
        role => format!("{}.block.{block}.{part}", role_name(role)),
    }
}

/// Queues a copy of `blocks` into the memory of `role`.
fn pinned(
    role: ModelRole,
    blocks: &[[Tensor; 3]],
    memory: &mut SnapshotMemory,
) -> Result<Vec<[HostBytes; 3]>, KernelError> {
    let bytes = |tensor: &Tensor| tensor.numel().saturating_mul(tensor.kind().elt_size_in_bytes());
    let tensors: Vec<_> = blocks.iter().flatten().map(Tensor::shallow_clone).collect();
    let total = tensors.iter().map(bytes).fold(0, usize::saturating_add);
    let mut copy = memory.take(role, total)?;
    copy.begin(&tensors)?;
    let copy = Arc::new(copy);
    memory.keep(role, Arc::clone(&copy));
    let mut start = 0_usize;
    let mut part = |tensor: &Tensor| {
        let range = start..start.saturating_add(bytes(tensor));
        start = range.end;
        HostBytes::Pinned(Arc::clone(&copy), range)
    };
    Ok(blocks.iter().map(|parts| parts.each_ref().map(&mut part)).collect())
}

fn pageable(blocks: Vec<[Tensor; 3]>) -> Result<Vec<[HostBytes; 3]>, CheckpointError> {
    let copy = |[weights, exp_avg, exp_avg_sq]: [Tensor; 3]| {
        Ok([bytes(&weights)?, bytes(&exp_avg)?, bytes(&exp_avg_sq)?].map(HostBytes::Owned))
    };
    blocks.into_par_iter().map(copy).collect()
}

/// A copy in host memory, which is made a chunk at a time: only the copy itself needs new memory.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>, CheckpointError> {
    let flat = tensor.f_reshape([-1])?;
    let mut bytes = vec![0; flat.numel().saturating_mul(4)];
    for (index, chunk) in bytes.chunks_mut(CHUNK * 4).enumerate() {
        let (start, length) = (index.saturating_mul(CHUNK), chunk.len() / 4);
        let part = flat.f_narrow(0, start as i64, length as i64)?;
        let part = part.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?;
        part.f_copy_data_u8(chunk, length)?;
    }
    Ok(bytes)
}

/// An fp32 vector as a tensor of safetensors.
struct HostTensor<'a> {
    shape: [usize; 1],
    bytes: &'a [u8],
}

impl<'a> HostTensor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { shape: [bytes.len() / 4], bytes }
    }
}

impl View for HostTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        crate::heartbeat::advance();
        Cow::Borrowed(self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
