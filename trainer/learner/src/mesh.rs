//! Mesh of learners: ranks by the shard and the replica of the models that they have.
//!
//! ```text
//!             shard 0   shard 1
//!  replica 0  rank 0    rank 1     the first trainer pod
//!  replica 1  rank 2    rank 3     the second
//! ```
//! With `Sharding::Hybrid` the learners of a pod have a replica. The coordinator gives them
//! consecutive ranks. Otherwise all learners have one replica.

use rljob_crds::algorithm::Sharding;
use rljob_crds::roles::TrainerSpec;

/// Number of ranks of a learner group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// All ranks.
    pub world_size: u32,
    /// Ranks of each trainer pod, a divisor of `world_size`.
    pub local_world_size: u32,
}

impl GroupSize {
    /// The size for all pods of a spec.
    pub fn of(trainer: &TrainerSpec) -> Self {
        Self { world_size: trainer.world_size(), local_world_size: trainer.processes() }
    }

    /// A group in one pod.
    pub fn one_pod(world_size: u32) -> Self {
        Self { world_size, local_world_size: world_size }
    }

    /// Number of ranks that divide a model.
    pub fn shards(self, sharding: Sharding) -> u32 {
        match sharding {
            Sharding::Full | Sharding::Gradients => self.world_size,
            Sharding::Hybrid => self.local_world_size,
        }
    }
}

/// Place of a rank in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    pub rank: u32,
    pub world_size: u32,
    /// Number of ranks that divide a model.
    shards: u32,
}

impl Mesh {
    /// The place of `rank`.
    pub fn new(rank: u32, size: GroupSize, sharding: Sharding) -> Self {
        Self { rank, world_size: size.world_size, shards: size.shards(sharding) }
    }

    /// Number of ranks that divide a model.
    pub fn shards(self) -> u32 {
        self.shards
    }

    /// Index of this rank's shard.
    pub fn shard(self) -> u32 {
        self.rank % self.shards
    }

    /// Number of ranks with the same shard.
    pub fn replicas(self) -> u32 {
        self.world_size / self.shards
    }

    /// Index of this rank's replica.
    pub fn replica(self) -> u32 {
        self.rank / self.shards
    }

    /// Whether this rank is one of the ranks `keepers` of a whole model; `None` if none of them is
    /// in its replica, which then gathers nothing.
    pub fn keeps(self, keepers: &[u32]) -> Option<bool> {
        let in_replica = |rank: &u32| rank / self.shards == self.replica();
        keepers.iter().any(in_replica).then(|| keepers.contains(&self.rank))
    }
}

impl From<(u32, u32)> for Mesh {
    /// The place of (rank, world size) in one replica.
    fn from((rank, world_size): (u32, u32)) -> Self {
        Self::new(rank, GroupSize::one_pod(world_size), Sharding::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupSize, Mesh, Sharding};

    const TWO_PODS: GroupSize = GroupSize { world_size: 4, local_world_size: 2 };

    /// Shard and replica of each rank.
    fn places(sharding: Sharding) -> [(u32, u32); 4] {
        let mesh = |rank| Mesh::new(rank, TWO_PODS, sharding);
        [0, 1, 2, 3].map(mesh).map(|mesh| (mesh.shard(), mesh.replica()))
    }

    #[test]
    fn a_hybrid_pod_has_a_replica_and_other_learners_have_one_together() {
        let one_replica = [(0, 0), (1, 0), (2, 0), (3, 0)];
        assert_eq!(places(Sharding::Full), one_replica);
        assert_eq!(places(Sharding::Gradients), one_replica);
        assert_eq!(places(Sharding::Hybrid), [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn a_replica_gathers_a_model_if_one_of_its_ranks_keeps_it() {
        let keeps = |sharding, keepers: &[u32]| {
            [0, 1, 2, 3].map(|rank| Mesh::new(rank, TWO_PODS, sharding).keeps(keepers))
        };
        let [no, yes] = [Some(false), Some(true)];
        assert_eq!(keeps(Sharding::Full, &[0]), [yes, no, no, no]);
        assert_eq!(keeps(Sharding::Hybrid, &[0]), [yes, no, None, None]);
        assert_eq!(keeps(Sharding::Hybrid, &[1, 2]), [no, yes, yes, no]);
        assert_eq!(keeps(Sharding::Full, &[]), [None; 4]);
    }
}
