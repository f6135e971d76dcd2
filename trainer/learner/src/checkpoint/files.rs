//! Division of a rank's part of a checkpoint into files, which threads read and write side by side.

use std::collections::BTreeMap;

use rljob_crds::algorithm::ModelRole;

use super::manifest::ModelShape;
use crate::fsdp::shard_numel;

/// Parts of each block, in the order of [`super::Restored::blocks`].
pub const PARTS: [&str; 3] = ["weights", "exp_avg", "exp_avg_sq"];
/// Bytes of a file at most, unless one tensor has more.
pub const FILE_BYTES: u64 = 1 << 30;

/// A tensor of a checkpoint: a model's block and the part of it, an index into [`PARTS`].
pub type Piece = (ModelRole, usize, usize);

/// The tensors in each file of a rank, in order: as many as have `file_bytes` at most.
pub fn division(
    shapes: &BTreeMap<ModelRole, ModelShape>,
    world_size: u32,
    file_bytes: u64,
) -> Vec<Vec<Piece>> {
    let pieces = shapes.iter().flat_map(|(role, shape)| {
        shape.block_numels.iter().enumerate().flat_map(move |(block, numel)| {
            let bytes = shard_numel(*numel, world_size).unsigned_abs().saturating_mul(4);
            (0..PARTS.len()).map(move |part| ((*role, block, part), bytes))
        })
    });
    let mut files: Vec<(u64, Vec<Piece>)> = Vec::new();
    for (piece, bytes) in pieces {
        match files.last_mut() {
            Some((size, pieces)) if size.saturating_add(bytes) <= file_bytes => {
                *size = size.saturating_add(bytes);
                pieces.push(piece);
            }
            _ => files.push((bytes, vec![piece])),
        }
    }
    files.into_iter().map(|(_, pieces)| pieces).collect()
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
    fn files_have_as_many_tensors_as_fit() {
        let shape = |block_numels: &[i64]| ModelShape {
            sha256: String::new(),
            block_numels: block_numels.to_vec(),
            base_sha256: None,
        };
        let shapes = BTreeMap::from([
            (ModelRole::Policy, shape(&[50, 4])),
            (ModelRole::Critic, shape(&[4])),
        ]);
        // A rank of two has 100 bytes of each tensor of the first block, and 8 of the others.
        let policy = |block, part| (ModelRole::Policy, block, part);
        let critic = |part| (ModelRole::Critic, 0, part);
        let expected = [
            vec![policy(0, 0)],
            vec![policy(0, 1)],
            vec![policy(0, 2)],
            vec![policy(1, 0), policy(1, 1)],
            vec![policy(1, 2), critic(0)],
            vec![critic(1), critic(2)],
        ];
        assert_eq!(division(&shapes, 2, 20), expected);
        assert_eq!(division(&shapes, 2, u64::MAX).len(), 1);
        assert_eq!(file_names(1, 2, 1), ["rank-1-of-2.safetensors"]);
        let names = ["rank-1-of-2-file-0-of-2.safetensors", "rank-1-of-2-file-1-of-2.safetensors"];
        assert_eq!(file_names(1, 2, 2), names);
    }
}
