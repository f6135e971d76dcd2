//! The engines of the run: the table behind a lock, the monitor that keeps it true, and leases for
//! requests.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::EngineState;
use rljob_protocol::version::Version;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{EngineClient, EngineError};
use super::slots::{Leased, Slot, Slots};
use super::weights::Weights;
use crate::clock::Clock;
use crate::core::instruct::EngineView;
use crate::persistence::fence::Fence;

/// Between two looks at every engine.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Engines looked at at the same time.
const POLLS: usize = 64;

/// All engines. Shared by the monitor, rollouts, evaluation and weight sync.
pub struct Fleet {
    /// How engines are called.
    pub client: EngineClient,
    slots: Mutex<Slots>,
    changed: watch::Sender<()>,
    clock: Clock,
}

impl Fleet {
    /// No engines yet.
    pub fn new(client: EngineClient, clock: Clock) -> Self {
        Self { client, slots: Mutex::default(), changed: watch::channel(()).0, clock }
    }

    /// Takes the list of engines that exist.
    pub fn set(&self, engines: &[EngineEndpoint]) {
        self.slots().set(engines, self.clock.now());
        self.client.keep(|url| engines.iter().any(|engine| engine.url == url));
        self.changed.send_replace(());
    }

    /// Told whenever something about an engine changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// As instructions see them.
    pub fn views(&self) -> Vec<EngineView> {
        self.slots().views(self.clock.now())
    }

    /// As the operator sees them.
    pub fn states(&self, current: Option<Version>) -> Vec<EngineState> {
        self.slots().states(current, self.clock.now())
    }

    /// Tokens in flight.
    pub fn tokens_in_flight(&self) -> u64 {
        self.slots().tokens_in_flight()
    }

    /// Changes one engine's row; nothing happens if it is gone.
    pub fn update<T>(&self, name: &str, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let result = self.slots().get_mut(name).map(change);
        self.changed.send_replace(());
        result
    }

    /// Waits until an engine with such weights has room for `requests` of `tokens` tokens in all.
    /// Ends with the caller: it is cancelled by dropping it.
    pub async fn lease(&self, weights: Weights, requests: u32, tokens: u64) -> Lease<'_> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let leased = self.slots().lease(weights, requests, tokens, self.clock.now());
            if let Some(engine) = leased {
                return Lease { fleet: self, engine, requests, tokens };
            }
            // A cooling engine becomes usable by time alone, so the wait is bounded.
            let _ = tokio::time::timeout(POLL_EVERY, changes.changed()).await;
        }
    }

    /// Keeps the table true until `stop`.
    pub async fn monitor(&self, fence: &Fence, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if self.slots().watch(self.clock.now()) {
                self.changed.send_replace(());
            }
            let endpoints = self.slots().endpoints();
            let polls = futures::stream::iter(endpoints)
                .for_each_concurrent(POLLS, |(name, url)| async move {
                    self.poll(fence, &name, &url).await
                });
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
        let resume = self.update_quietly(name, |slot| {
            if Some(slot.updates) != updates {
                return false;
            }
            match info {
                Ok(info) => slot.answered(info.weight_version),
                Err(error) => slot.missed(asked, error.nobody_listens()),
            }
            slot.version().is_some() && !slot.resumed && slot.usable(self.clock.now())
        });
        if resume == Some(true) {
            // Its label is a version, yet this process never told it to continue: a coordinator
            // before this one may have left it paused.
            let resumed = match may_control(fence).await {
                Ok(()) => self.client.resume(url).await,
                Err(error) => Err(error),
            };
            self.update_quietly(name, |slot| match resumed {
                Ok(()) => slot.resumed = true,
                Err(_) => slot.failed(self.clock.now()),
            });
            self.changed.send_replace(());
        } else if self.slots().views(self.clock.now()) != before {
            self.changed.send_replace(());
        }
    }

    fn update_quietly<T>(&self, name: &str, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.slots().get_mut(name).map(change)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this coordinator may still pause, update and resume engines: one that was replaced would
/// undo its successor's work, and engines know no epochs.
pub async fn may_control(fence: &Fence) -> Result<(), EngineError> {
    fence.ask().await.map_err(|error| EngineError::Aborted(crate::error_line(&error)))
}

/// Room reserved at one engine; given back when dropped.
pub struct Lease<'a> {
    fleet: &'a Fleet,
    /// Where.
    pub engine: Leased,
    requests: u32,
    tokens: u64,
}

impl Lease<'_> {
    /// Gives back one request of the reservation.
    pub fn finish_one(&mut self, tokens: u64) {
        let tokens = tokens.min(self.tokens);
        let requests = self.requests.min(1);
        self.fleet.slots().release(&self.engine.name, &self.engine.url, requests, tokens);
        self.requests -= requests;
        self.tokens -= tokens;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.fleet.slots().release(&self.engine.name, &self.engine.url, self.requests, self.tokens);
        self.fleet.changed.send_replace(());
    }
}
