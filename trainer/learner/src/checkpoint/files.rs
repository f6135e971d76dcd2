//! Division of a rank's part of a checkpoint into files, which threads read and write side by side.

use std::collections::BTreeMap;

use rljob_crds::algorithm::ModelRole;

use super::manifest::ModelShape;
use super::shard::PARTS;
use crate::fsdp::shard_numel;

/// Bytes of a file at most, unless one block has more.
pub const FILE_BYTES: u64 = 1 << 30;

/// A block of a model.
pub type Block = (ModelRole, usize);

/// The blocks in each file of a rank, in order: as many as have `file_bytes` at most.
pub fn division(
    shapes: &BTreeMap<ModelRole, ModelShape>,
    world_size: u32,
    file_bytes: u64,
) -> Vec<Vec<Block>> {
    let blocks = shapes.iter().flat_map(|(role, shape)| {
        let numels = shape.block_numels.iter().enumerate();
        numels.map(move |(block, numel)| ((*role, block), bytes(*numel, world_size)))
    });
    let mut files: Vec<(u64, Vec<Block>)> = Vec::new();
    for (block, bytes) in blocks {
        match files.last_mut() {
            Some((size, blocks)) if size.saturating_add(bytes) <= file_bytes => {
                *size = size.saturating_add(bytes);
                blocks.push(block);
            }
            _ => files.push((bytes, vec![block])),
        }
    }
    files.into_iter().map(|(_, blocks)| blocks).collect()
}

/// Bytes of a rank's shard of a block with its moments, in fp32.
fn bytes(numel: i64, world_size: u32) -> u64 {
    shard_numel(numel, world_size).unsigned_abs().saturating_mul(4 * PARTS.len() as u64)
}

/// Names of the `count` files of a rank.
pub fn file_names(rank: u32, world_size: u32, count: usize) -> Vec<String> {
    let part = format!("rank-{rank}-of-{world_size}");
    if count < 2 {
        return vec![format!("{part}.safetensors")];
    }
    (0..count).map(|index| format!("{part}-file-{index}-of-{count}.safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_as_many_blocks_as_fit() {
        let shape = |block_numels: &[i64]| ModelShape {
            sha256: String::new(),
            block_numels: block_numels.to_vec(),
            base_sha256: None,
        };
        let shapes = BTreeMap::from([
            (ModelRole::Policy, shape(&[50, 4, 4, 4])),
            (ModelRole::Critic, shape(&[4, 4])),
        ]);
        // 24 bytes per two elements on two ranks.
        let policy = |block| (ModelRole::Policy, block);
        let critic = |block| (ModelRole::Critic, block);
        let expected = [
            vec![policy(0)],
            vec![policy(1), policy(2)],
            vec![policy(3), critic(0)],
            vec![critic(1)],
        ];
        assert_eq!(division(&shapes, 2, 50), expected);
        assert_eq!(division(&shapes, 2, u64::MAX).len(), 1);
        assert_eq!(file_names(1, 2, 1), ["rank-1-of-2.safetensors"]);
        let names = ["rank-1-of-2-file-0-of-2.safetensors", "rank-1-of-2-file-1-of-2.safetensors"];
        assert_eq!(file_names(1, 2, 2), names);
    }
}
