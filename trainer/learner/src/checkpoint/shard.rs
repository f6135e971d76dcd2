//! One rank's part of a checkpoint: a snapshot in host memory, written as a safetensors file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::checkpoint::ObjectiveState;
use safetensors::tensor::{Dtype, View};
use tch::{Kind, Tensor};

use super::CheckpointError;
use super::manifest::{
    FileEntry, OptimizerProgress, commit, measure, role_name, shard_file, temporary,
};

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
    /// By block: master weights, first and second moment, as little-endian fp32.
    blocks: Vec<[Vec<u8>; 3]>,
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
        let copy = |parts: [&Tensor; 3]| {
            Ok::<_, CheckpointError>([
                host_bytes(parts[0])?,
                host_bytes(parts[1])?,
                host_bytes(parts[2])?,
            ])
        };
        let blocks = blocks.map(copy).collect::<Result<_, _>>()?;
        self.models.insert(role, ModelSnapshot { optimizer, blocks });
        Ok(())
    }

    /// State of the optimizers without moments, by role.
    pub fn progress(&self) -> impl Iterator<Item = (ModelRole, OptimizerProgress)> {
        self.models.iter().map(|(role, model)| (*role, model.optimizer))
    }

    /// Writes the file of rank `rank` into `folder`, syncs it and computes its checksum by reading
    /// it back.
    ///
    /// # Errors
    /// A file operation fails.
    pub fn write(
        &self,
        folder: &Path,
        rank: u32,
        world_size: u32,
    ) -> Result<FileEntry, CheckpointError> {
        fs::create_dir_all(folder).map_err(|error| CheckpointError::io("create", folder, error))?;
        let path = folder.join(shard_file(rank, world_size));
        let partial = temporary(&path);
        let blocks = self.models.iter().flat_map(|(role, model)| {
            model.blocks.iter().enumerate().map(move |(block, parts)| (*role, block, parts))
        });
        let views = blocks.flat_map(|(role, block, parts)| {
            PARTS.iter().zip(parts).map(move |(part, bytes)| {
                (tensor_name(role, block, part), HostTensor { shape: [bytes.len() / 4], bytes })
            })
        });
        safetensors::serialize_to_file(views, None, &partial).map_err(|error| {
            CheckpointError::io("write", &partial, std::io::Error::other(error))
        })?;
        File::open(&partial)
            .and_then(|file| file.sync_all())
            .map_err(|error| CheckpointError::io("sync", &partial, error))?;
        commit(&partial, &path)?;
        measure(folder, &shard_file(rank, world_size))
    }
}

/// Name of a block's part in the file; without a prefix for the policy.
pub fn tensor_name(role: ModelRole, block: usize, part: &str) -> String {
    match role {
        ModelRole::Policy => format!("block.{block}.{part}"),
        role => format!("{}.block.{block}.{part}", role_name(role)),
    }
}

fn host_bytes(tensor: &Tensor) -> Result<Vec<u8>, CheckpointError> {
    let tensor = tensor.to_device(tch::Device::Cpu).to_kind(Kind::Float).contiguous();
    let mut bytes = vec![0; tensor.numel().saturating_mul(4)];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

/// fp32 bytes as a tensor of safetensors.
struct HostTensor<'a> {
    shape: [usize; 1],
    bytes: &'a [u8],
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
