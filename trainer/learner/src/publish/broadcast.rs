//! Broadcasts to engines, each in a group of its own, so that one that dies delays no other. Failures are logged: the coordinator sees them at the engine.
//!
//! ```text
//!  thread "publish"   POST WeightsReady::Distributed ──▶ a thread per transfer: join the group ──▶ broadcast tensor by tensor
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rljob_collective::{CollectiveError, Group, Store};
use rljob_protocol::learner::{Transfer, WeightsReady};
use rljob_protocol::version::Version;

use super::{PublishError, Staged};
use crate::coordinator_client::CoordinatorClient;

/// Longest wait for an engine to join its group, and in one broadcast to it.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for publications under way when the learner ends.
const LAST_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// Publications under way at once; each holds a copy of the weights.
const MAX_IN_FLIGHT: usize = 2;

/// Sends weights to engines from this rank.
#[derive(Debug)]
pub struct Broadcaster {
    client: CoordinatorClient,
    rank: u32,
    address: String,
    /// Hosted from the first publication on, for the life of the process.
    store: Option<Arc<Store>>,
    in_flight: VecDeque<JoinHandle<()>>,
}

impl Broadcaster {
    /// A sender that engines reach at `address`.
    pub fn new(client: CoordinatorClient, rank: u32, address: String) -> Self {
        Self { client, rank, address, store: None, in_flight: VecDeque::new() }
    }

    /// Begins to send `staged` to the engines of `transfers`, which are all this rank's. Waits only if too many publications are under way.
    pub fn begin(&mut self, version: Version, transfers: Vec<Transfer>, staged: Staged) -> Result<(), PublishError> {
        self.in_flight.retain(|thread| !thread.is_finished());
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.wait_for_oldest();
        }
        let store = self.store()?;
        let ready = WeightsReady::Distributed {
            attempt: self.client.attempt(),
            version,
            rank: self.rank,
            store_address: self.address.clone(),
            store_port: store.port(),
            tensors: staged.infos(),
        };
        let (client, address) = (self.client.clone(), self.address.clone());
        let publish = move || match client.report_weights(&ready) {
            Ok(()) => send_all(&store, &address, &transfers, &staged),
            Err(error) => tracing::warn!(%version, error = crate::error_line(&error), "weights were not announced, and so not sent"),
        };
        let thread = std::thread::Builder::new().name("publish".to_owned()).spawn(publish);
        self.in_flight.push_back(thread.map_err(|error| PublishError::Broadcast(error.to_string()))?);
        Ok(())
    }

    /// Waits a moment for what is under way. An engine that has not come by now is gone, and nobody needs what it was to receive.
    pub fn finish(&mut self) {
        let deadline = Instant::now() + LAST_WAIT;
        while self.in_flight.iter().any(|thread| !thread.is_finished()) {
            if Instant::now() >= deadline {
                tracing::info!("weights were not sent to engines that never came");
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    fn wait_for_oldest(&mut self) {
        if self.in_flight.pop_front().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("a publication's thread panicked");
        }
    }

    fn store(&mut self) -> Result<Arc<Store>, PublishError> {
        if let Some(store) = &self.store {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(Store::host(0, TIMEOUT).map_err(|error| PublishError::Broadcast(error.to_string()))?);
        self.store = Some(Arc::clone(&store));
        Ok(store)
    }
}

/// One thread for each engine, so that the slowest delays nobody.
fn send_all(store: &Arc<Store>, address: &str, transfers: &[Transfer], staged: &Staged) {
    let threads: Vec<_> = transfers
        .iter()
        .map(|transfer| {
            let (store, address, transfer, staged) = (Arc::clone(store), address.to_owned(), transfer.clone(), staged.share());
            std::thread::spawn(move || log_outcome(&transfer, send(&store, &address, &transfer, &staged)))
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            tracing::warn!("a transfer's thread panicked");
        }
    }
}

fn log_outcome(transfer: &Transfer, outcome: Result<Duration, CollectiveError>) {
    let Transfer { engine, group, .. } = transfer;
    match outcome {
        Ok(time) => tracing::info!(engine, group, seconds = time.as_secs_f64(), "sent the weights"),
        Err(error) => tracing::warn!(engine, group, %error, "failed to send the weights; the engine will be loaded anew"),
    }
}

fn send(store: &Store, address: &str, transfer: &Transfer, staged: &Staged) -> Result<Duration, CollectiveError> {
    let group = Group::join_weight_update(store, &transfer.group, 0, transfer.world_size, address, TIMEOUT)?;
    tracing::debug!(engine = transfer.engine, "sending the weights");
    let started = Instant::now();
    for (_, tensor) in staged.tensors() {
        group.broadcast(&tensor, 0)?;
    }
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rljob_collective::{Group, Store};
    use rljob_protocol::learner::Transfer;
    use tch::{Device, Kind, Tensor};

    use super::send_all;
    use crate::publish::tests::{source, staged};
    use std::sync::Arc;

    #[test]
    fn an_engine_in_its_own_group_receives_every_tensor_in_order() {
        let (_source, layout, blocks) = source();
        let staged = staged(&layout, &blocks, Kind::BFloat16);
        let infos = staged.infos();
        let store = Arc::new(Store::host(0, Duration::from_secs(60)).unwrap());
        let port = store.port();
        let engine = |group: &'static str| {
            let infos = infos.clone();
            move || {
                let store = Store::connect("127.0.0.1", port, Duration::from_secs(60)).unwrap();
                let group = Group::join_weight_update(&store, group, 1, 2, "127.0.0.1", Duration::from_secs(60)).unwrap();
                let receive = |info: &rljob_protocol::learner::TensorInfo| {
                    let tensor = Tensor::zeros(info.shape.as_slice(), (Kind::BFloat16, Device::Cpu));
                    group.broadcast(&tensor, 0).unwrap();
                    (info.name.clone(), tensor)
                };
                infos.iter().map(receive).collect::<Vec<_>>()
            }
        };
        let engines = ["step-1.attempt-0.engine-0", "step-1.attempt-0.engine-1"];
        let transfers = engines.map(|group| Transfer { engine: group.to_owned(), sender: 0, group: group.to_owned(), world_size: 2 });
        let threads = engines.map(|group| std::thread::spawn(engine(group)));
        send_all(&store, "127.0.0.1", &transfers, &staged);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), staged.tensors());
        }
    }
}
