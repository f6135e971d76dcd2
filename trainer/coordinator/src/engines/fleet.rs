//! Engine fleet: the shared engine table, the monitor that polls engines, and leases for requests.

use std::time::Duration;

use futures::StreamExt;
use parking_lot::MutexGuard;
use rljob_crds::roles::InferenceSpec;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::sglang::ModelInfo;
use rljob_protocol::status::{EngineState, RequestCounts};
use rljob_protocol::version::Version;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::core::instruct::EngineView;
use crate::engines::client::EngineClient;
use crate::engines::error::EngineError;
use crate::engines::queue::{Place, Wanted};
use crate::engines::reservations::{Lease, Reservations};
use crate::engines::slot::Slot;
use crate::engines::slots::{EngineSpan, Slots};
use crate::engines::suitability::{self, Limits};
use crate::persistence::fence::Fence;
use crate::timeline::NO_ANSWER;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent polls.
const CONCURRENT_POLLS: usize = 64;

/// Engines of one purpose. Shared by the monitor, weight sync, and rollouts, evaluation, rewards or
/// the teacher.
pub struct Fleet {
    pub client: EngineClient,
    reservations: Reservations,
    /// Limit of the requests of an engine besides the one that it reports.
    max_requests: Option<u32>,
    clock: Clock,
}

impl Fleet {
    /// The engines of `spec`.
    pub fn new(spec: &InferenceSpec, client: EngineClient, clock: Clock) -> Self {
        Self::with_slots(Slots::default(), spec, client, clock)
    }

    /// Engines that keep the weights of their model folder: they are not updated and not paused.
    pub fn with_fixed_weights(spec: &InferenceSpec, client: EngineClient, clock: Clock) -> Self {
        Self::with_slots(Slots::with_fixed_weights(), spec, client, clock)
    }

    fn with_slots(slots: Slots, spec: &InferenceSpec, client: EngineClient, clock: Clock) -> Self {
        let reservations = Reservations::new(slots, clock);
        Self { client, reservations, max_requests: spec.max_running_requests, clock }
    }

    /// Replaces the list of engines.
    pub fn set(&self, engines: &[EngineEndpoint]) {
        self.slots().set(engines, self.clock.now());
        self.client.retain(|url| engines.iter().any(|engine| engine.url == url));
        self.reservations.notify();
    }

    /// Notifies of every change of an engine.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.reservations.changes()
    }

    /// Time in which engines responded and had no request, summed over them.
    pub fn idle(&self) -> Duration {
        self.slots().idle()
    }

    /// What engines did since the last call.
    pub fn take_spans(&self) -> Vec<EngineSpan> {
        self.slots().take_spans(self.clock.now())
    }

    /// Views for instructions.
    pub fn views(&self) -> Vec<EngineView> {
        self.slots().views(self.clock.now())
    }

    /// States for the operator, given the current weights.
    pub fn states(&self, current: Option<Version>) -> Vec<EngineState> {
        self.slots().states(current, self.clock.now())
    }

    /// States of engines that only evaluate, given the weights of the evaluation in progress.
    pub fn evaluation_states(&self, current: Option<Version>) -> Vec<EngineState> {
        self.slots().evaluation_states(current, self.clock.now())
    }

    /// Version of an engine's weights, if it is known.
    pub fn version(&self, engine: &str) -> Option<Version> {
        self.slots().get_mut(engine).and_then(|slot| slot.version())
    }

    pub fn tokens_in_flight(&self) -> u64 {
        self.slots().tokens_in_flight()
    }

    /// Requests that engines process and that wait.
    pub fn request_counts(&self) -> RequestCounts {
        self.reservations.counts()
    }

    /// Changes an engine; `None` if it does not exist.
    pub fn update<T>(&self, name: &str, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let result = self.slots().get_mut(name).map(change);
        self.reservations.notify();
        result
    }

    /// Backs off from an engine after a failed call.
    pub fn failed(&self, name: &str) {
        let now = self.clock.now();
        self.update(name, |slot| slot.failed(now));
    }

    /// Waits for a reservation of an engine with matching weights and room. Cancel safe.
    pub async fn lease(&self, place: Place, wanted: Wanted) -> Lease<'_> {
        self.reservations.lease(place, wanted).await
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
                self.reservations.notify();
            }
            // The end of a backoff is no event.
            self.reservations.serve();
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
        if self.record_poll(name, updates, asked, info) {
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
            self.reservations.notify();
        } else if self.slots().views(self.clock.now()) != before {
            self.reservations.notify();
        }
    }

    /// Records the response to a poll that was sent at `asked`, unless an update has begun or ended
    /// since. Returns whether the engine has not described itself.
    fn record_poll(
        &self,
        name: &str,
        updates: Option<u64>,
        asked: Duration,
        info: Result<ModelInfo, EngineError>,
    ) -> bool {
        let (mut slots, now) = (self.slots(), self.clock.now());
        let Some(slot) = slots.get_mut(name).filter(|slot| Some(slot.updates) == updates) else {
            return false;
        };
        let silent_since = match info {
            Ok(info) => slot.answered(info.weight_version),
            Err(error) => {
                slot.missed(asked, error.is_connection_refused());
                None
            }
        };
        let is_undescribed = slot.is_undescribed(now);
        if let Some(since) = silent_since {
            slots.add_span(name, NO_ANSWER, (since, now));
        }
        is_undescribed
    }

    /// Reads what a new process says about itself.
    async fn describe(&self, name: &str, url: &str) {
        let limits = self.client.server_info(url).await.map(|info| {
            let limits = suitability::limits(&info)?;
            Ok(limits.at_most(self.max_requests))
        });
        match &limits {
            Ok(Ok(Limits { requests })) => {
                // SGLang's scheduler is Python, and its garbage collections visit the objects of
                // its start (docs/gpu-results.md). Other servers lack the route.
                if let Err(error) = self.client.freeze_garbage_collector(url).await {
                    let error = crate::error_line(&error);
                    tracing::debug!(engine = name, error, "garbage collections are not shortened");
                }
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
        self.reservations.slots()
    }
}

/// Fails if a newer coordinator exists. Call before pausing, updating or resuming an engine:
/// engines do not know epochs, and a superseded coordinator would interfere with its successor.
pub async fn check_epoch(fence: &Fence) -> Result<(), EngineError> {
    fence.ask().await.map_err(|error| EngineError::Aborted(crate::error_line(&error)))
}
