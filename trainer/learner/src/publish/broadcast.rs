//! Weight broadcast to engines, each in a separate process group, so that an engine that exits
//! delays no other. Failures are logged; the coordinator detects them at the engine.
//!
//! ```text
//!  thread "publish"    POST WeightsReady::Distributed ──▶ one thread per transfer
//!  transfer's thread   kept process group, or join one ──▶ take the offer ──▶ broadcast in buckets
//!                      timeout: no engine                  withdrawn: leave the group
//!                        ▲                                                        │
//!                        └───────────── kept after a complete broadcast ◀─────────┘
//! ```
//!
//! An engine may never join, because it or the coordinator that instructs it failed. Only the
//! transfer's thread waits for it, without a copy of the weights.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rljob_collective::{CollectiveError, Store};
use rljob_protocol::learner::{Transfer, WeightsReady};
use rljob_protocol::peer::PROTOCOL_BUCKETS;
use rljob_protocol::probe::WeightProbe;
use rljob_protocol::version::Version;
use tch::{Device, Tensor};

use super::engine_groups::{KeptGroups, Place, TIMEOUT};
use super::{PublishError, Staged};
use crate::coordinator_client::CoordinatorClient;

/// Time that an exiting learner waits for transfers in flight.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of offers; each holds a copy of the weights.
const MAX_OFFERS: usize = 2;

/// Weights that engines can receive until they are withdrawn.
#[derive(Debug)]
struct Offer {
    staged: Mutex<Option<Staged>>,
    parts: Parts,
    /// Whether the transfer to an engine was given up, by its name.
    given_up: HashMap<String, AtomicBool>,
}

impl Offer {
    fn new(staged: Staged, parts: Parts, transfers: &[Transfer]) -> Arc<Self> {
        let given_up = |transfer: &Transfer| (transfer.engine.clone(), AtomicBool::new(false));
        let given_up = transfers.iter().map(given_up).collect();
        Arc::new(Self { staged: Mutex::new(Some(staged)), parts, given_up })
    }

    fn give_up(&self, engine: &str) {
        if let Some(given_up) = self.given_up.get(engine) {
            given_up.store(true, Ordering::Relaxed);
        }
    }

    /// A handle of the copy for one transfer, unless it was withdrawn.
    fn take(&self) -> Option<Staged> {
        self.staged.lock().as_ref().map(Staged::share)
    }

    fn withdraw(&self) {
        *self.staged.lock() = None;
    }
}

/// Division of the weights into broadcasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    Buckets,
    /// One broadcast per tensor, for a coordinator that does not know buckets.
    Tensors,
}

impl Parts {
    fn for_peer(protocol: u32) -> Self {
        if protocol >= PROTOCOL_BUCKETS { Self::Buckets } else { Self::Tensors }
    }

    /// Number of tensors of each bucket.
    fn counts(self, staged: &Staged) -> Vec<u32> {
        match self {
            Self::Buckets => staged.buckets().iter().map(|bucket| bucket.tensors).collect(),
            Self::Tensors => Vec::new(),
        }
    }

    /// Elements by which engines are checked, for a coordinator that does so.
    fn probes(self, staged: &Staged) -> Vec<WeightProbe> {
        if self == Self::Buckets { staged.probes.clone() } else { Vec::new() }
    }

    /// Content of each broadcast.
    fn contents(self, staged: &Staged) -> Vec<Tensor> {
        match self {
            Self::Buckets => staged.buckets().into_iter().map(|bucket| bucket.flat).collect(),
            Self::Tensors => staged.tensors().into_iter().map(|(_, tensor)| tensor).collect(),
        }
    }
}

/// Sends weights to engines from this rank.
#[derive(Debug)]
pub struct Broadcaster {
    client: CoordinatorClient,
    rank: u32,
    place: Place,
    groups: Arc<KeptGroups>,
    /// Store of the process groups, hosted from the first publication until the process exits.
    store: Option<Arc<Store>>,
    in_flight: VecDeque<(JoinHandle<()>, Arc<Offer>)>,
}

impl Broadcaster {
    /// Creates a sender whose address for engines is `address`, of weights on `device`.
    pub fn new(client: CoordinatorClient, rank: u32, address: String, device: Device) -> Self {
        let place = Place { address, device };
        Self {
            client,
            rank,
            place,
            groups: Arc::default(),
            store: None,
            in_flight: VecDeque::new(),
        }
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
        let parts = Parts::for_peer(self.client.coordinator_protocol());
        let ready = WeightsReady::Distributed {
            attempt: self.client.attempt(),
            version,
            rank: self.rank,
            store_address: self.place.address.clone(),
            store_port: store.port(),
            tensors: staged.infos(),
            buckets: parts.counts(&staged),
            probes: parts.probes(&staged),
        };
        let (client, offer) = (self.client.clone(), Offer::new(staged, parts, &transfers));
        let offered = Arc::clone(&offer);
        let ends = Ends { store, place: self.place.clone(), groups: Arc::clone(&self.groups) };
        let publish = move || match client.report_weights(&ready) {
            Ok(()) => send_all(&ends, &transfers, &offered),
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

    /// Ends earlier transfers to the engines of `transfers` that join another process group: the
    /// coordinator asks for one after a failure, or once the engine's process was replaced. On a
    /// GPU, a broadcast to an engine that ended would last until its timeout.
    pub fn give_up_replaced(&self, transfers: &[Transfer]) {
        for transfer in transfers.iter().filter(|transfer| !transfer.kept) {
            self.in_flight.iter().for_each(|(_, offer)| offer.give_up(&transfer.engine));
        }
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

/// This process's ends of process groups with engines.
#[derive(Clone, Debug)]
struct Ends {
    store: Arc<Store>,
    place: Place,
    groups: Arc<KeptGroups>,
}

/// Sends on one thread per engine, so that a slow engine delays no other.
fn send_all(ends: &Ends, transfers: &[Transfer], offer: &Arc<Offer>) {
    let threads: Vec<_> = transfers
        .iter()
        .map(|transfer| {
            let (ends, transfer, offer) = (ends.clone(), transfer.clone(), Arc::clone(offer));
            std::thread::spawn(move || log_outcome(&transfer, send(&ends, &transfer, &offer)))
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
        Ok(None) => {
            tracing::info!(engine, group, "weights were not sent: the transfer is superseded");
        }
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

/// Sends the weights; returns the duration, or `None` if they were withdrawn. The group is left
/// unless the broadcast is complete.
fn send(
    ends: &Ends,
    transfer: &Transfer,
    offer: &Offer,
) -> Result<Option<Duration>, CollectiveError> {
    let group = ends.groups.take_or_join(&ends.store, &ends.place, transfer)?;
    let (Some(staged), Some(given_up)) = (offer.take(), offer.given_up.get(&transfer.engine))
    else {
        return Ok(None);
    };
    if given_up.load(Ordering::Relaxed) {
        return Ok(None);
    }
    tracing::debug!(engine = transfer.engine, "sending the weights");
    let started = Instant::now();
    group.send(&offer.parts.contents(&staged), staged.copied.as_deref(), given_up)?;
    if offer.parts == Parts::Buckets {
        ends.groups.keep(transfer, group);
    }
    Ok(Some(started.elapsed()))
}

#[cfg(test)]
mod tests;
