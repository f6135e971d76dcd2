//! Engine fleet: the shared engine table, the monitor that polls engines, and leases for requests.

use std::time::Duration;

use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::EngineState;
use rljob_protocol::version::Version;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::core::instruct::EngineView;
use crate::engines::client::EngineClient;
use crate::engines::error::EngineError;
use crate::engines::slot::Slot;
use crate::engines::slots::{Leased, Slots};
use crate::engines::suitability::{self, Limits};
use crate::engines::weights::Weights;
use crate::persistence::fence::Fence;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent polls.
const CONCURRENT_POLLS: usize = 64;

/// All engines. Shared by the monitor, rollouts, evaluation and weight sync.
pub struct Fleet {
    pub client: EngineClient,
    slots: Mutex<Slots>,
    changed: watch::Sender<()>,
    clock: Clock,
}

impl Fleet {
    pub fn new(client: EngineClient, clock: Clock) -> Self {
        Self { client, slots: Mutex::default(), changed: watch::channel(()).0, clock }
    }

    /// Replaces the list of engines.
    pub fn set(&self, engines: &[EngineEndpoint]) {
        self.slots().set(engines, self.clock.now());
        self.client.retain(|url| engines.iter().any(|engine| engine.url == url));
        self.changed.send_replace(());
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
        self.changed.send_replace(());
        result
    }

    /// Waits for an engine with matching weights and capacity for `requests` requests with a total
    /// of `tokens` tokens. Cancel safe.
    pub async fn lease(&self, weights: Weights, requests: u32, tokens: u64) -> Lease<'_> {
        self.lease_near(None, weights, requests, tokens).await
    }

    /// As [`Self::lease`], but of the preferred engine if it is free. Cancel safe.
    pub async fn lease_near(
        &self,
        preferred: Option<&str>,
        weights: Weights,
        requests: u32,
        tokens: u64,
    ) -> Lease<'_> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let now = self.clock.now();
            let leased = self.slots().lease_near(preferred, weights, (requests, tokens), now);
            if let Some(engine) = leased {
                return Lease { fleet: self, engine, requests, tokens };
            }
            // The end of a backoff sends no notification, so bound the wait.
            let _ = tokio::time::timeout(POLL_INTERVAL, changes.changed()).await;
        }
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
                self.changed.send_replace(());
            }
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
            self.changed.send_replace(());
        } else if self.slots().views(self.clock.now()) != before {
            self.changed.send_replace(());
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
        self.fleet.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rljob_protocol::desired::EngineEndpoint;
    use rljob_protocol::version::Version;

    use super::{Clock, EngineClient, Fleet, Limits};
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

    #[tokio::test]
    async fn a_sample_of_a_full_engine_that_is_interrupted_returns_to_it() {
        let fleet = fleet();
        let one = || fleet.lease(Weights::Exactly(CURRENT), 1, 10);
        let mut group = fleet.lease(Weights::Exactly(CURRENT), 2, 20).await;
        let (first, second) = (group.split_one(10), group.split_one(10));
        assert!(one().now_or_never().is_none(), "the engine is full");
        drop(first);
        let again = one().now_or_never().expect("the reservation of the first is free");
        assert!(one().now_or_never().is_none(), "the group keeps the second");
        assert_eq!(fleet.tokens_in_flight(), 20);
        drop((group, second, again));
        assert_eq!(fleet.tokens_in_flight(), 0);
        assert_eq!(fleet.version("engine-0"), Some(CURRENT));
    }
}
