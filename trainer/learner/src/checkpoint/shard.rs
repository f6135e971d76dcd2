//! One rank's part of a checkpoint: a copy in host memory, and its safetensors file.

use std::borrow::Cow;
use std::fs::{self, File};
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use tch::{Kind, Tensor};

use super::CheckpointError;
use super::manifest::{FileEntry, commit, measure, shard_file, temporary};

/// What is kept of each block, in the order of [`Snapshot::blocks`] and of [`super::Restored`].
pub const PARTS: [&str; 3] = ["weights", "exp_avg", "exp_avg_sq"];

/// A copy of a rank's shards in host memory.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By block: master weights, first and second moment, as little-endian fp32.
    blocks: Vec<[Vec<u8>; 3]>,
}

impl Snapshot {
    /// Copies the fp32 shards of `blocks`, each with its two moments.
    pub fn take<'a>(
        blocks: impl Iterator<Item = [&'a Tensor; 3]>,
    ) -> Result<Self, CheckpointError> {
        let copy = |parts: [&Tensor; 3]| {
            Ok::<_, CheckpointError>([
                host_bytes(parts[0])?,
                host_bytes(parts[1])?,
                host_bytes(parts[2])?,
            ])
        };
        Ok(Self { blocks: blocks.map(copy).collect::<Result<_, _>>()? })
    }

    /// Writes the file of rank `rank` into `folder`, synced, and measures it by reading it back.
    pub fn write(
        &self,
        folder: &Path,
        rank: u32,
        world_size: u32,
    ) -> Result<FileEntry, CheckpointError> {
        fs::create_dir_all(folder).map_err(|error| CheckpointError::io("create", folder, error))?;
        let path = folder.join(shard_file(rank, world_size));
        let partial = temporary(&path);
        let views = self.blocks.iter().enumerate().flat_map(|(block, parts)| {
            PARTS.iter().zip(parts).map(move |(part, bytes)| {
                (tensor_name(block, part), HostTensor { shape: [bytes.len() / 4], bytes })
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

/// The name of a block's part in the file.
pub fn tensor_name(block: usize, part: &str) -> String {
    format!("block.{block}.{part}")
}

fn host_bytes(tensor: &Tensor) -> Result<Vec<u8>, CheckpointError> {
    let tensor = tensor.to_device(tch::Device::Cpu).to_kind(Kind::Float).contiguous();
    let mut bytes = vec![0; tensor.numel() * 4];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

/// fp32 bytes as safetensors sees a tensor.
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
