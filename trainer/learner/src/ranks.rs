//! Rank in the process groups of learners, its device, and small collectives of the training loop.
//! A world size of 1 needs no process group. Learners on GPUs have a second group, over NCCL, for
//! weights and gradients.

use std::rc::Rc;
use std::time::Duration;

use rljob_collective::{CollectiveError, DeviceGroup, Group, Store};
use tch::{Device, Kind, Tensor};

use crate::coordinator_client::PATIENCE;

/// Timeout of a collective: a peer may retry a call to the coordinator for up to [`PATIENCE`]. The
/// exit of a peer is detected immediately.
const TIMEOUT: Duration = Duration::from_secs(PATIENCE.as_secs() + 300);
/// Timeout of joining, while other ranks start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Rank of this learner, with its device and process groups.
#[derive(Debug)]
pub struct Ranks {
    rank: u32,
    world_size: u32,
    device: Device,
    /// Dropped before `group`, which tells peers that this rank ends.
    device_group: Option<DeviceGroup>,
    group: Option<Group>,
    /// Keeps rank 0's store alive.
    _store: Option<Store>,
}

impl Ranks {
    /// A world size of 1 on a CPU, without a process group.
    pub fn alone() -> Rc<Self> {
        Self::alone_on(Device::Cpu)
    }

    /// A world size of 1, without a process group.
    pub fn alone_on(device: Device) -> Rc<Self> {
        let (device_group, group, store) = (None, None, None);
        Rc::new(Self { rank: 0, world_size: 1, device, device_group, group, _store: store })
    }

    /// Joins the process groups of an attempt as (rank, world size): rank 0 hosts the store at
    /// `rendezvous` (host, port); `address` is this rank's address for other ranks.
    ///
    /// # Errors
    /// The store is unreachable, or a rank does not join in time.
    pub fn join(
        rendezvous: (&str, u16),
        address: &str,
        (rank, world_size): (u32, u32),
        device: Device,
        attempt: u32,
    ) -> Result<Rc<Self>, CollectiveError> {
        if world_size == 1 {
            return Ok(Self::alone_on(device));
        }
        let (host, port) = rendezvous;
        let store = if rank == 0 {
            Store::host(host, port, JOIN_TIMEOUT)?
        } else {
            Store::connect(host, port, JOIN_TIMEOUT)?
        };
        let group = Group::join(
            &store,
            &format!("learners-{attempt}"),
            rank,
            world_size,
            address,
            TIMEOUT,
        )?;
        let device_group = match device {
            Device::Cuda(index) => Some(DeviceGroup::join(
                &store,
                &format!("gpus-{attempt}"),
                (rank, world_size),
                index,
                TIMEOUT,
            )?),
            _ => None,
        };
        let (group, store) = (Some(group), Some(store));
        Ok(Rc::new(Self { rank, world_size, device, device_group, group, _store: store }))
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Device of models and batches.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The process group of GPUs; `None` on CPUs and for a world size of 1.
    pub fn device_group(&self) -> Option<&DeviceGroup> {
        self.device_group.as_ref()
    }

    /// The process group of hosts; `None` for a world size of 1.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
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
        let (ranks, count) = (i64::from(self.world_size), values.len() as i64);
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
        let content = if self.rank == 0 {
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
