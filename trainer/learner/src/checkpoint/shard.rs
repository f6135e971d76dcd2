//! One rank's part of a checkpoint: a snapshot in host memory, written as safetensors files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::checkpoint::ObjectiveState;
use safetensors::tensor::{Dtype, View};
use tch::{Device, Kind, Tensor};

use super::CheckpointError;
use super::files::{Block, file_names};
use super::manifest::{FileEntry, OptimizerProgress, commit, measure, role_name, temporary};
use crate::parallel;

/// Parts of each block, in the order of [`super::Restored::blocks`].
pub const PARTS: [&str; 3] = ["weights", "exp_avg", "exp_avg_sq"];

/// A copy of a rank's shards of every trained model in host memory.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub objective: ObjectiveState,
    models: BTreeMap<ModelRole, ModelSnapshot>,
}

#[derive(Debug)]
struct ModelSnapshot {
    optimizer: OptimizerProgress,
    /// By block: master weights, first and second moment, in fp32 in host memory.
    blocks: Vec<[Tensor; 3]>,
}

impl Snapshot {
    /// Adds a copy of a model's fp32 shards: `blocks`, each with its two moments.
    ///
    /// # Errors
    /// libtorch cannot copy a tensor.
    pub fn add<'a>(
        &mut self,
        role: ModelRole,
        optimizer: OptimizerProgress,
        blocks: impl Iterator<Item = [&'a Tensor; 3]>,
    ) -> Result<(), CheckpointError> {
        let blocks: Vec<_> = blocks.map(|parts| parts.map(Tensor::shallow_clone)).collect();
        // Threads have other streams than this one.
        if let Some(Device::Cuda(index)) = blocks.first().map(|[weights, ..]| weights.device()) {
            tch::Cuda::synchronize(index as i64);
        }
        let copy = |[weights, exp_avg, exp_avg_sq]: [Tensor; 3]| {
            Ok::<_, CheckpointError>([copy(&weights)?, copy(&exp_avg)?, copy(&exp_avg_sq)?])
        };
        let blocks = parallel::map(blocks, copy)?;
        self.models.insert(role, ModelSnapshot { optimizer, blocks });
        Ok(())
    }

    /// State of the optimizers without moments, by role.
    pub fn progress(&self) -> impl Iterator<Item = (ModelRole, OptimizerProgress)> {
        self.models.iter().map(|(role, model)| (*role, model.optimizer))
    }

    /// Writes the files of rank `rank` into `folder`, syncs them and computes their checksums by
    /// reading them back. `division` has the blocks of each file.
    ///
    /// # Errors
    /// A file operation fails.
    pub fn write(
        self,
        folder: &Path,
        (rank, world_size): (u32, u32),
        division: &[Vec<Block>],
    ) -> Result<Vec<FileEntry>, CheckpointError> {
        fs::create_dir_all(folder).map_err(|error| CheckpointError::io("create", folder, error))?;
        let mut blocks = self.models.into_iter().flat_map(|(role, model)| {
            model.blocks.into_iter().enumerate().map(move |(block, parts)| ((role, block), parts))
        });
        let names = file_names(rank, world_size, division.len());
        let files = names.into_iter().zip(division);
        let files = files.map(|(name, of)| (name, blocks.by_ref().take(of.len()).collect()));
        parallel::map(files.collect(), |(name, blocks)| write_file(folder, &name, blocks))
    }
}

fn write_file(
    folder: &Path,
    name: &str,
    blocks: Vec<(Block, [Tensor; 3])>,
) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(name);
    let partial = temporary(&path);
    let views = blocks.into_iter().flat_map(|((role, block), parts)| {
        PARTS.iter().zip(parts).map(move |(part, tensor)| {
            (tensor_name(role, block, part), HostTensor { shape: [tensor.numel()], tensor })
        })
    });
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

/// A copy in host memory.
fn copy(tensor: &Tensor) -> Result<Tensor, CheckpointError> {
    let mut copy = Tensor::f_empty(tensor.size(), (Kind::Float, Device::Cpu))?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// An fp32 vector as a tensor of safetensors.
struct HostTensor {
    shape: [usize; 1],
    tensor: Tensor,
}

impl View for HostTensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        crate::heartbeat::advance();
        let mut bytes = vec![0; self.data_len()];
        self.tensor.copy_data_u8(&mut bytes, self.tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel().saturating_mul(4)
    }
}
