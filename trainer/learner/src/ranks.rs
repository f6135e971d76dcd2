//! Rank in the process group of learners, and small collectives of the training loop. A world size
//! of 1 needs no process group.

use std::rc::Rc;
use std::time::Duration;

use rljob_collective::{CollectiveError, Group, Store};
use tch::{Kind, Tensor};

use crate::coordinator_client::PATIENCE;

/// Timeout of a collective: a peer may retry a call to the coordinator for up to [`PATIENCE`]. The
/// exit of a peer is detected immediately.
const TIMEOUT: Duration = Duration::from_secs(PATIENCE.as_secs() + 300);
/// Timeout of joining, while other ranks start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Rank of this learner, with its process group.
#[derive(Debug)]
pub struct Ranks {
    rank: u32,
    world_size: u32,
    group: Option<Group>,
    /// Keeps rank 0's store alive.
    _store: Option<Store>,
}

impl Ranks {
    /// A world size of 1, without a process group.
    pub fn alone() -> Rc<Self> {
        Rc::new(Self { rank: 0, world_size: 1, group: None, _store: None })
    }

    /// Joins the process group of an attempt: rank 0 hosts the store at `rendezvous` (host, port);
    /// `address` is this rank's address for other ranks.
    ///
    /// # Errors
    /// The store is unreachable, or a rank does not join in time.
    pub fn join(
        rendezvous: (&str, u16),
        address: &str,
        rank: u32,
        world_size: u32,
        attempt: u32,
    ) -> Result<Rc<Self>, CollectiveError> {
        if world_size == 1 {
            return Ok(Self::alone());
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
        Ok(Rc::new(Self { rank, world_size, group: Some(group), _store: Some(store) }))
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The process group; `None` for a world size of 1.
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
        let Some(group) = &self.group else { return Ok(value) };
        let all = Tensor::zeros([i64::from(self.world_size)], (Kind::Double, tch::Device::Cpu));
        group.all_gather(&all, &Tensor::from_slice(&[value]))?;
        Ok(all.max().double_value(&[]))
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
