//! Engine fleet: the shared engine table, the monitor that polls engines, and leases for requests.

use std::time::Duration;

use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::EngineState;
use rljob_protocol::version::Version;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::core::instruct::EngineView;
use crate::engines::client::EngineClient;
use crate::engines::error::EngineError;
use crate::engines::queue::{Place, Queue, Ticket, Wanted};
use crate::engines::slot::Slot;
use crate::engines::slots::{Leased, Slots};
use crate::engines::suitability::{self, Limits};
use crate::persistence::fence::Fence;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent polls.
const CONCURRENT_POLLS: usize = 64;

/// All engines. Shared by the monitor, rollouts, evaluation and weight sync.
pub struct Fleet {
    pub client: EngineClient,
    slots: Mutex<Slots>,
    /// Locked before `slots`.
    queue: Mutex<Queue<oneshot::Sender<Leased>>>,
    changed: watch::Sender<()>,
    clock: Clock,
}

impl Fleet {
    pub fn new(client: EngineClient, clock: Clock) -> Self {
        Self {
            client,
            slots: Mutex::default(),
            queue: Mutex::default(),
            changed: watch::channel(()).0,
            clock,
        }
    }

    /// Replaces the list of engines.
    pub fn set(&self, engines: &[EngineEndpoint]) {
        self.slots().set(engines, self.clock.now());
        self.client.retain(|url| engines.iter().any(|engine| engine.url == url));
        self.notify();
    }

    /// Notifies of every change of an engine.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Time in which engines responded and had no request, summed over them.
    pub fn idle(&self) -> Duration {
        self.slots().idle()
    }

    /// Views for instructions.
    pub fn views(&self) -> Vec<EngineView> {
        self.slots().views(self.clock.now())
    }

    /// States for the operator, given the current weights.
    pub fn states(&self, current: Option<Version>) -> Vec<EngineState> {
        self.slots().states(current, self.clock.now())
    }

    /// Version of an engine's weights, if it is known.
    pub fn version(&self, engine: &str) -> Option<Version> {
        self.slots().get_mut(engine).and_then(|slot| slot.version())
    }

    pub fn tokens_in_flight(&self) -> u64 {
        self.slots().tokens_in_flight()
    }

    /// Changes an engine; `None` if it does not exist.
    pub fn update<T>(&self, name: &str, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let result = self.slots().get_mut(name).map(change);
        self.notify();
        result
    }

    /// Waits for a reservation of an engine with matching weights and room. Cancel safe.
    pub async fn lease(&self, place: Place, wanted: Wanted) -> Lease<'_> {
        let (requests, tokens) = (wanted.requests, wanted.tokens);
        let (grant, granted) = oneshot::channel();
        let ticket = self.queue.lock().add(place, wanted, grant);
        let mut waiting = Waiting { fleet: self, ticket, requests, tokens, granted };
        self.serve();
        match (&mut waiting.granted).await {
            Ok(engine) => Lease { fleet: self, engine, requests, tokens },
            // The queue has the sender until it grants.
            Err(_) => std::future::pending().await,
        }
    }

    /// Grants reservations to waiting requests, as far as there is room.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        let (mut slots, now) = (self.slots(), self.clock.now());
        for (grant, leased) in queue.serve(|wanted| slots.lease(wanted, now)) {
            // `Waiting` receives as long as its request is in the queue.
            let _ = grant.send(leased);
        }
    }

    /// Grants what has become possible, and tells observers of a change.
    fn notify(&self) {
        self.serve();
        self.changed.send_replace(());
    }

    /// Polls all engines until `stop`.
    pub async fn monitor(&self, fence: &Fence, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.slots().count_idle(self.clock.now());
            if self.slots().detect_hangs(self.clock.now()) {
                self.notify();
            }
            // The end of a backoff is no event.
            self.serve();
            let endpoints = self.slots().endpoints();
            let polls = futures::stream::iter(endpoints).for_each_concurrent(
                CONCURRENT_POLLS,
                |(name, url)| async move {
                    self.poll(fence, &name, &url).await;
                },
            );
            tokio::select! {
                () = stop.cancelled() => return,
                () = polls => {}
            }
        }
    }

    async fn poll(&self, fence: &Fence, name: &str, url: &str) {
        let updates = self.update_quietly(name, |slot| slot.updates);
        let asked = self.clock.now();
        let info = self.client.model_info(url).await;
        let before = self.slots().views(self.clock.now());
        let undescribed = self.update_quietly(name, |slot| {
            if Some(slot.updates) != updates {
                return false;
            }
            match info {
                Ok(info) => slot.answered(info.weight_version),
                Err(error) => slot.missed(asked, error.is_connection_refused()),
            }
            slot.is_undescribed(self.clock.now())
        });
        if undescribed == Some(true) {
            self.describe(name, url).await;
        }
        let resume = self.update_quietly(name, |slot| {
            Some(slot.updates) == updates
                && slot.version().is_some()
                && !slot.resumed
                && slot.usable(self.clock.now())
        });
        if resume == Some(true) {
            // The engine has trained weights, but this process has not resumed it: a previous
            // coordinator may have paused it.
            let resumed = match check_epoch(fence).await {
                Ok(()) => self.client.resume(url).await,
                Err(error) => Err(error),
            };
            self.update_quietly(name, |slot| match resumed {
                Ok(()) => slot.resumed = true,
                Err(_) => slot.failed(self.clock.now()),
            });
            self.notify();
        } else if self.slots().views(self.clock.now()) != before {
            self.notify();
        }
    }

    /// Reads what a new process says about itself.
    async fn describe(&self, name: &str, url: &str) {
        let limits = self.client.server_info(url).await.map(|info| suitability::limits(&info));
        match &limits {
            Ok(Ok(Limits { requests })) => {
                tracing::info!(engine = name, requests, "an engine is up");
            }
            Ok(Err(error)) => tracing::error!(engine = name, %error, "an engine is not used"),
            Err(error) => tracing::warn!(
                engine = name, error = %crate::error_line(error), "an engine is not used yet",
            ),
        }
        self.update_quietly(name, |slot| match limits {
            Ok(limits) => slot.described(limits),
            Err(_) => slot.failed(self.clock.now()),
        });
    }

    fn update_quietly<T>(&self, name: &str, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.slots().get_mut(name).map(change)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }
}

/// Fails if a newer coordinator exists. Call before pausing, updating or resuming an engine:
/// engines do not know epochs, and a superseded coordinator would interfere with its successor.
pub async fn check_epoch(fence: &Fence) -> Result<(), EngineError> {
    fence.ask().await.map_err(|error| EngineError::Aborted(crate::error_line(&error)))
}

/// A request that waits for a reservation. Dropped, it leaves the queue, and returns a reservation
/// that was granted meanwhile.
struct Waiting<'a> {
    fleet: &'a Fleet,
    ticket: Ticket,
    requests: u32,
    tokens: u64,
    granted: oneshot::Receiver<Leased>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_served = !self.fleet.queue.lock().remove(self.ticket);
        if is_served && let Ok(engine) = self.granted.try_recv() {
            let (fleet, requests, tokens) = (self.fleet, self.requests, self.tokens);
            drop(Lease { fleet, engine, requests, tokens });
        }
    }
}

/// A reservation at an engine; released on drop.
pub struct Lease<'a> {
    fleet: &'a Fleet,
    pub engine: Leased,
    requests: u32,
    tokens: u64,
}

impl<'a> Lease<'a> {
    /// Splits off the reservation of one request with this many tokens.
    #[must_use]
    pub fn split_one(&mut self, tokens: u64) -> Lease<'a> {
        let (requests, tokens) = (self.requests.min(1), self.tokens.min(tokens));
        self.requests = self.requests.saturating_sub(requests);
        self.tokens = self.tokens.saturating_sub(tokens);
        Lease { fleet: self.fleet, engine: self.engine.clone(), requests, tokens }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.fleet.slots().release(&self.engine.name, &self.engine.url, self.requests, self.tokens);
        self.fleet.notify();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rljob_protocol::desired::EngineEndpoint;
    use rljob_protocol::version::Version;

    use super::{Clock, EngineClient, Fleet, Limits, Place, Wanted};
    use crate::engines::weights::Weights;
    use crate::tokens::Token;

    const CURRENT: Version = Version { step: 3, attempt: 0 };

    /// A fleet of one engine that holds the current weights and has room for two requests.
    fn fleet() -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), "key").unwrap();
        let token = Token::open(folder.path(), "key").unwrap();
        let fleet = Fleet::new(EngineClient::new(token.clone(), token, None), Clock::start());
        let (name, url) = ("engine-0".to_owned(), "http://engine-0".to_owned());
        fleet.set(&[EngineEndpoint { name, url, uid: None }]);
        fleet.update("engine-0", |slot| {
            slot.answered("default".to_owned());
            slot.described(Ok(Limits { requests: 2 }));
            slot.update_begins();
            slot.update_ends(Some(CURRENT), Clock::start().now());
        });
        fleet
    }

    fn wanted(requests: u32) -> Wanted {
        let weights = Weights::Exactly(CURRENT);
        Wanted { preferred: None, weights, requests, tokens: u64::from(requests) * 10 }
    }

    fn place(step: u32) -> Place {
        Place { step, beside: false, position: 0 }
    }

    #[tokio::test]
    async fn an_interrupted_sample_of_a_full_engine_returns_to_it_before_later_groups() {
        let fleet = fleet();
        let mut group = fleet.lease(place(3), wanted(2)).await;
        let (first, second) = (group.split_one(10), group.split_one(10));
        let later = fleet.lease(place(4), wanted(2));
        let again = fleet.lease(place(3), wanted(1));
        tokio::pin!(later, again);
        assert!(later.as_mut().now_or_never().is_none(), "the engine is full");
        assert!(again.as_mut().now_or_never().is_none(), "the engine is full");
        drop(first);
        let again = again.now_or_never().expect("the reservation of the first is free");
        drop((group, second));
        assert!(later.as_mut().now_or_never().is_none(), "a request of step 3 runs");
        drop(again);
        let later = later.now_or_never().expect("the engine is idle");
        assert_eq!(fleet.tokens_in_flight(), 20);
        drop(later);
        assert_eq!(fleet.tokens_in_flight(), 0);
        assert_eq!(fleet.version("engine-0"), Some(CURRENT));
    }

    #[tokio::test]
    async fn a_request_that_is_cancelled_reserves_nothing() {
        let fleet = fleet();
        let full = fleet.lease(place(1), wanted(2)).await;
        let mut granted = Box::pin(fleet.lease(place(2), wanted(2)));
        assert!(granted.as_mut().now_or_never().is_none());
        drop(full);
        assert_eq!(fleet.tokens_in_flight(), 20, "it is granted, and not taken");
        drop(granted);
        let waiting = Box::pin(fleet.lease(place(3), wanted(2)));
        drop(waiting);
        assert_eq!(fleet.tokens_in_flight(), 0);
    }
}
