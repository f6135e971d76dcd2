//! Weight broadcast to engines, each in a separate process group, so that an engine that exits
//! delays no other. Failures are logged; the coordinator detects them at the engine.
//!
//! ```text
//!  thread "publish"    POST WeightsReady::Distributed ──▶ one thread per transfer
//!  transfer's thread   join the process group ──▶ take the offer ──▶ broadcast tensor by tensor
//!                      timeout: no engine         withdrawn: nothing to send
//! ```
//!
//! An engine may never join, because it or the coordinator that instructs it failed. Only the
//! transfer's thread waits for it, without a copy of the weights.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rljob_collective::{CollectiveError, DeviceGroup, Group, Store, Stream};
use rljob_protocol::learner::{Transfer, WeightsReady};
use rljob_protocol::version::Version;
use tch::Device;

use super::{PublishError, Staged};
use crate::coordinator_client::CoordinatorClient;

/// Timeout of an engine joining its process group, and of one broadcast.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time that an exiting learner waits for transfers in flight.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of offers; each holds a copy of the weights.
const MAX_OFFERS: usize = 2;

/// Weights that engines can receive until they are withdrawn.
#[derive(Debug)]
struct Offer(Mutex<Option<Staged>>);

impl Offer {
    fn new(staged: Staged) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(staged))))
    }

    /// A handle of the copy for one transfer, unless it was withdrawn.
    fn take(&self) -> Option<Staged> {
        self.0.lock().as_ref().map(Staged::share)
    }

    fn withdraw(&self) {
        *self.0.lock() = None;
    }
}

/// Sends weights to engines from this rank.
#[derive(Debug)]
pub struct Broadcaster {
    client: CoordinatorClient,
    rank: u32,
    place: Place,
    /// Store of the process groups, hosted from the first publication until the process exits.
    store: Option<Arc<Store>>,
    in_flight: VecDeque<(JoinHandle<()>, Arc<Offer>)>,
}

impl Broadcaster {
    /// Creates a sender whose address for engines is `address`, of weights on `device`.
    pub fn new(client: CoordinatorClient, rank: u32, address: String, device: Device) -> Self {
        let place = Place { address, device };
        Self { client, rank, place, store: None, in_flight: VecDeque::new() }
    }

    /// Sends `staged` in the background to the engines of `transfers`, all of this rank, and
    /// withdraws the oldest offers above [`MAX_OFFERS`].
    ///
    /// # Errors
    /// The store cannot be hosted, or the thread cannot be started.
    pub fn begin(
        &mut self,
        version: Version,
        transfers: Vec<Transfer>,
        staged: Staged,
    ) -> Result<(), PublishError> {
        self.in_flight.retain(|(thread, _)| !thread.is_finished());
        while self.in_flight.len() >= MAX_OFFERS {
            if let Some((_, offer)) = self.in_flight.pop_front() {
                offer.withdraw();
            }
        }
        let store = self.store()?;
        let ready = WeightsReady::Distributed {
            attempt: self.client.attempt(),
            version,
            rank: self.rank,
            store_address: self.place.address.clone(),
            store_port: store.port(),
            tensors: staged.infos(),
        };
        let (client, place, offer) = (self.client.clone(), self.place.clone(), Offer::new(staged));
        let offered = Arc::clone(&offer);
        let publish = move || match client.report_weights(&ready) {
            Ok(()) => send_all(&store, &place, &transfers, &offered),
            Err(error) => {
                let error = crate::error_line(&error);
                tracing::warn!(%version, error, "failed to announce weights; they are not sent");
            }
        };
        let thread = std::thread::Builder::new().name("publish".to_owned()).spawn(publish);
        self.in_flight.push_back((
            thread.map_err(|error| PublishError::Broadcast(error.to_string()))?,
            offer,
        ));
        Ok(())
    }

    /// Waits up to [`EXIT_TIMEOUT`] for transfers in flight. An engine that has not joined by then
    /// has exited.
    pub fn finish(&mut self) {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while self.in_flight.iter().any(|(thread, _)| !thread.is_finished()) {
            if Instant::now() >= deadline {
                tracing::info!("weights were not sent to engines that did not join");
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    fn store(&mut self) -> Result<Arc<Store>, PublishError> {
        if let Some(store) = &self.store {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(
            Store::host(&self.place.address, 0, TIMEOUT)
                .map_err(|error| PublishError::Broadcast(error.to_string()))?,
        );
        self.store = Some(Arc::clone(&store));
        Ok(store)
    }
}

/// Sends on one thread per engine, so that a slow engine delays no other.
fn send_all(store: &Arc<Store>, place: &Place, transfers: &[Transfer], offer: &Arc<Offer>) {
    let threads: Vec<_> = transfers
        .iter()
        .map(|transfer| {
            let (store, place, transfer, offer) =
                (Arc::clone(store), place.clone(), transfer.clone(), Arc::clone(offer));
            std::thread::spawn(move || {
                log_outcome(&transfer, send(&store, &place, &transfer, &offer));
            })
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            tracing::warn!("a transfer's thread panicked");
        }
    }
}

fn log_outcome(transfer: &Transfer, outcome: Result<Option<Duration>, CollectiveError>) {
    let Transfer { engine, group, .. } = transfer;
    match outcome {
        Ok(Some(time)) => {
            tracing::info!(engine, group, seconds = time.as_secs_f64(), "sent the weights");
        }
        Ok(None) => tracing::info!(engine, group, "weights were not sent: newer ones exist"),
        Err(error) => {
            tracing::warn!(
                engine,
                group,
                %error,
                "failed to send the weights; the engine will be reloaded"
            );
        }
    }
}

/// Where a sender's weights are, and its address for engines.
#[derive(Clone, Debug)]
struct Place {
    address: String,
    device: Device,
}

/// A process group with an engine: over NCCL between GPUs, else over Gloo.
enum EngineGroup {
    Host(Group),
    Device(DeviceGroup),
}

impl EngineGroup {
    /// Joins as the sender, rank 0.
    fn join(store: &Store, place: &Place, transfer: &Transfer) -> Result<Self, CollectiveError> {
        let Transfer { group, world_size, .. } = transfer;
        match place.device {
            Device::Cuda(index) => {
                let ranks = (0, *world_size);
                DeviceGroup::join_weight_update(store, group, ranks, index, TIMEOUT)
                    .map(Self::Device)
            }
            _ => Group::join_weight_update(store, group, 0, *world_size, &place.address, TIMEOUT)
                .map(Self::Host),
        }
    }

    /// Sends every tensor in order.
    fn send(&self, staged: &Staged) -> Result<(), CollectiveError> {
        match self {
            Self::Host(group) => {
                staged.tensors().iter().try_for_each(|(_, tensor)| group.broadcast(tensor, 0))
            }
            Self::Device(group) => {
                if let Some(copied) = &staged.copied {
                    copied.wait(Stream::Of(group))?;
                }
                for (_, tensor) in staged.tensors() {
                    group.broadcast(&tensor, 0)?;
                }
                group.finish()
            }
        }
    }
}

/// Sends the weights; returns the duration, or `None` if they were withdrawn.
fn send(
    store: &Store,
    place: &Place,
    transfer: &Transfer,
    offer: &Offer,
) -> Result<Option<Duration>, CollectiveError> {
    let group = EngineGroup::join(store, place, transfer)?;
    let Some(staged) = offer.take() else { return Ok(None) };
    tracing::debug!(engine = transfer.engine, "sending the weights");
    let started = Instant::now();
    group.send(&staged)?;
    Ok(Some(started.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rljob_collective::{Group, Store};
    use rljob_protocol::learner::Transfer;
    use tch::{Device, Kind, Tensor};

    use super::{Offer, Place, send, send_all};
    use crate::publish::tests::{source, staged};
    use std::sync::Arc;

    fn place() -> Place {
        Place { address: "127.0.0.1".to_owned(), device: Device::Cpu }
    }

    #[test]
    fn engines_in_separate_groups_receive_every_tensor_in_order() {
        let (_source, layout, blocks) = source();
        let staged = staged(&layout, &blocks, Kind::BFloat16);
        let infos = staged.infos();
        let store = Arc::new(Store::host("127.0.0.1", 0, Duration::from_secs(60)).unwrap());
        let port = store.port();
        let engine = |group: &'static str| {
            let infos = infos.clone();
            move || {
                let store = Store::connect("127.0.0.1", port, Duration::from_secs(60)).unwrap();
                let group = Group::join_weight_update(
                    &store,
                    group,
                    1,
                    2,
                    "127.0.0.1",
                    Duration::from_secs(60),
                )
                .unwrap();
                let receive = |info: &rljob_protocol::learner::TensorInfo| {
                    let tensor =
                        Tensor::zeros(info.shape.as_slice(), (Kind::BFloat16, Device::Cpu));
                    group.broadcast(&tensor, 0).unwrap();
                    (info.name.clone(), tensor)
                };
                infos.iter().map(receive).collect::<Vec<_>>()
            }
        };
        let engines = ["step-1.attempt-0.engine-0", "step-1.attempt-0.engine-1"];
        let transfers = engines.map(|group| Transfer {
            engine: group.to_owned(),
            sender: 0,
            group: group.to_owned(),
            world_size: 2,
        });
        let threads = engines.map(|group| std::thread::spawn(engine(group)));
        let offer = Offer::new(staged);
        send_all(&store, &place(), &transfers, &offer);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), offer.take().unwrap().tensors());
        }
    }

    #[test]
    fn withdrawn_weights_are_not_sent() {
        let (_source, layout, blocks) = source();
        let offer = Offer::new(staged(&layout, &blocks, Kind::BFloat16));
        offer.withdraw();
        let store = Store::host("127.0.0.1", 0, Duration::from_secs(60)).unwrap();
        let port = store.port();
        let engine = std::thread::spawn(move || {
            let store = Store::connect("127.0.0.1", port, Duration::from_secs(60)).unwrap();
            let group = Group::join_weight_update(
                &store,
                "late",
                1,
                2,
                "127.0.0.1",
                Duration::from_secs(60),
            )
            .unwrap();
            group.broadcast(&Tensor::zeros([4], (Kind::BFloat16, Device::Cpu)), 0).is_err()
        });
        let transfer = Transfer {
            engine: "late".to_owned(),
            sender: 0,
            group: "late".to_owned(),
            world_size: 2,
        };
        assert!(send(&store, &place(), &transfer, &offer).unwrap().is_none());
        assert!(engine.join().unwrap());
    }
}
