//! Rank in the process groups of learners, its device, and small collectives of the training loop.
//! A world size of 1 needs no process group. Weights and gradients have process groups for shards
//! and replicas of the [`Mesh`], which are over NCCL on GPUs.

use std::rc::Rc;
use std::time::Duration;

use rljob_collective::{CollectiveError, DeviceEvent, DeviceGroup, Group, Store, Stream};
use tch::{Device, Kind, Tensor};

use crate::coordinator_client::PATIENCE;
use crate::mesh::Mesh;

/// Timeout of a collective: a peer may retry a call to the coordinator for up to [`PATIENCE`]. The
/// exit of a peer is detected immediately.
const TIMEOUT: Duration = Duration::from_secs(PATIENCE.as_secs() + 300);
/// Timeout of joining, while other ranks start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Rank of this learner, with its device and process groups.
#[derive(Debug)]
pub struct Ranks {
    mesh: Mesh,
    device: Device,
    /// On GPUs. Dropped before `group`, which tells peers that this rank ends.
    device_groups: MeshGroups<DeviceGroup>,
    /// On CPUs.
    host_groups: MeshGroups<Group>,
    group: Option<Group>,
    /// Keeps rank 0's store alive.
    _store: Option<Store>,
}

/// Process groups of the mesh; none of one rank.
#[derive(Debug)]
struct MeshGroups<G> {
    /// The ranks that divide this rank's replica.
    shards: Option<G>,
    /// The ranks with this rank's shard.
    replicas: Option<G>,
}

impl<G> MeshGroups<G> {
    fn none() -> Self {
        Self { shards: None, replicas: None }
    }

    /// Joins the groups by `join`, which gets a name in the store, the rank and the world size.
    fn join(
        mesh: Mesh,
        name: &str,
        join: impl Fn(&str, (u32, u32)) -> Result<G, CollectiveError>,
    ) -> Result<Self, CollectiveError> {
        let (shard, replica) = (mesh.shard(), mesh.replica());
        let group = |name: String, rank, world_size| {
            (world_size > 1).then(|| join(&name, (rank, world_size))).transpose()
        };
        Ok(Self {
            shards: group(format!("{name}-replica-{replica}"), shard, mesh.shards())?,
            replicas: group(format!("{name}-shard-{shard}"), replica, mesh.replicas())?,
        })
    }
}

impl Ranks {
    /// A world size of 1 on a CPU, without a process group.
    pub fn alone() -> Rc<Self> {
        Self::alone_on(Device::Cpu)
    }

    /// A world size of 1, without a process group.
    pub fn alone_on(device: Device) -> Rc<Self> {
        Rc::new(Self {
            mesh: Mesh::from((0, 1)),
            device,
            device_groups: MeshGroups::none(),
            host_groups: MeshGroups::none(),
            group: None,
            _store: None,
        })
    }

    /// Joins the process groups of an attempt: rank 0 hosts the store at `rendezvous` (host, port);
    /// `address` is this rank's address for other ranks.
    ///
    /// # Errors
    /// The store is unreachable, or a rank does not join in time.
    pub fn join(
        rendezvous: (&str, u16),
        address: &str,
        mesh: impl Into<Mesh>,
        device: Device,
        attempt: u32,
    ) -> Result<Rc<Self>, CollectiveError> {
        let mesh = mesh.into();
        if mesh.world_size == 1 {
            return Ok(Self::alone_on(device));
        }
        let (host, port) = rendezvous;
        let store = if mesh.rank == 0 {
            Store::host(host, port, JOIN_TIMEOUT)?
        } else {
            Store::connect(host, port, JOIN_TIMEOUT)?
        };
        let on_host = |name: &str, (rank, world_size)| {
            Group::join(&store, name, rank, world_size, address, TIMEOUT)
        };
        let name = format!("learners-{attempt}");
        let group = on_host(&name, (mesh.rank, mesh.world_size))?;
        let (mut device_groups, mut host_groups) = (MeshGroups::none(), MeshGroups::none());
        if let Device::Cuda(index) = device {
            let on_device =
                |name: &str, ranks| DeviceGroup::join(&store, name, ranks, index, TIMEOUT);
            device_groups = MeshGroups::join(mesh, &format!("gpus-{attempt}"), on_device)?;
        } else if mesh.replicas() > 1 {
            host_groups = MeshGroups::join(mesh, &name, on_host)?;
        }
        let (group, store) = (Some(group), Some(store));
        Ok(Rc::new(Self { mesh, device, device_groups, host_groups, group, _store: store }))
    }

    pub fn rank(&self) -> u32 {
        self.mesh.rank
    }

    pub fn world_size(&self) -> u32 {
        self.mesh.world_size
    }

    /// Shard and replica of this rank.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Whether this rank has a part of the first replica, which counts in sums over shards and is
    /// the one in checkpoints.
    pub fn is_of_first_replica(&self) -> bool {
        self.mesh.replica() == 0
    }

    /// Device of models and batches.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The process group of hosts of all ranks; `None` for a world size of 1.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// The ranks that divide a model, on CPUs; `None` if one has it whole.
    pub fn shard_group(&self) -> Option<&Group> {
        if self.mesh.replicas() == 1 { self.group() } else { self.host_groups.shards.as_ref() }
    }

    /// The ranks with the same shard, on CPUs; `None` if there is one replica.
    pub fn replica_group(&self) -> Option<&Group> {
        self.host_groups.replicas.as_ref()
    }

    /// The ranks that divide a model, on GPUs; `None` if one has it whole.
    pub fn shard_device_group(&self) -> Option<&DeviceGroup> {
        self.device_groups.shards.as_ref()
    }

    /// The ranks with the same shard, on GPUs; `None` if there is one replica.
    pub fn replica_device_group(&self) -> Option<&DeviceGroup> {
        self.device_groups.replicas.as_ref()
    }

    /// Sums `values` over the ranks, entry by entry; the same bits on every rank.
    pub fn sum<const N: usize>(&self, mut values: [f64; N]) -> Result<[f64; N], CollectiveError> {
        self.sum_slice(&mut values)?;
        Ok(values)
    }

    /// Sums `values` over the ranks, entry by entry, in place. Every rank must pass the same number
    /// of values.
    pub fn sum_slice(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        let Some(group) = &self.group else { return Ok(()) };
        let tensor = Tensor::from_slice(values);
        group.all_reduce(&tensor)?;
        tensor.copy_data(values, values.len());
        Ok(())
    }

    /// Sums fp64 `numbers` of a GPU in place, over the ranks of a replica, and then the first of
    /// them over the replicas: after libtorch's earlier operations and before its later ones.
    /// Nothing waits for the device.
    pub fn sum_on_device(&self, numbers: &Tensor) -> Result<(), CollectiveError> {
        let of_all = numbers.narrow(0, 0, 1);
        let groups = [(self.shard_device_group(), numbers), (self.replica_device_group(), &of_all)];
        for (group, numbers) in groups {
            let Some(group) = group else { continue };
            let event = DeviceEvent::new()?;
            event.record(Stream::Compute)?;
            event.wait(Stream::Of(group))?;
            group.all_reduce(numbers)?;
            event.record(Stream::Of(group))?;
            event.wait(Stream::Compute)?;
        }
        Ok(())
    }

    /// Maximum of `value` over the ranks.
    pub fn max(&self, value: f64) -> Result<f64, CollectiveError> {
        let mut values = [value];
        self.max_slice(&mut values)?;
        Ok(values[0])
    }

    /// Maximum of `values` over the ranks, entry by entry, in place. Every rank must pass the same
    /// number of values.
    pub fn max_slice(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        let Some(group) = &self.group else { return Ok(()) };
        let (ranks, count) = (i64::from(self.world_size()), values.len() as i64);
        let all = Tensor::zeros([ranks * count], (Kind::Double, tch::Device::Cpu));
        group.all_gather(&all, &Tensor::from_slice(values))?;
        all.view([ranks, count]).amax([0], false).copy_data(values, values.len());
        Ok(())
    }

    /// Broadcasts the `bytes` of rank 0; those of other ranks are ignored.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        let Some(group) = &self.group else { return Ok(bytes) };
        let length = Tensor::from_slice(&[bytes.len() as i64]);
        group.broadcast(&length, 0)?;
        let length = length.int64_value(&[0]);
        let content = if self.rank() == 0 {
            Tensor::from_slice(&bytes)
        } else {
            Tensor::zeros([length], (Kind::Uint8, tch::Device::Cpu))
        };
        group.broadcast(&content, 0)?;
        let mut received = vec![0; length as usize];
        content.copy_data(&mut received, length as usize);
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maxima_over_ranks_are_taken_entry_by_entry() {
        let port =
            std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let maxima = |rank: u32| {
            let rendezvous = ("127.0.0.1", port);
            let ranks = Ranks::join(rendezvous, "127.0.0.1", (rank, 2), Device::Cpu, 0).unwrap();
            let mut values = [[1.0, -7.0, f64::NEG_INFINITY], [0.5, -6.0, f64::NEG_INFINITY]];
            ranks.max_slice(&mut values[rank as usize]).unwrap();
            values[rank as usize]
        };
        let both = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || maxima(rank)));
            ranks.map(|thread| thread.join().unwrap())
        });
        assert_eq!(both, [[1.0, -6.0, f64::NEG_INFINITY]; 2]);
        let mut alone = [3.0, 4.0];
        Ranks::alone().max_slice(&mut alone).unwrap();
        assert_eq!(alone.map(f64::to_bits), [3.0_f64, 4.0].map(f64::to_bits));
    }
}
