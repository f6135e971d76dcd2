//! Engine table: state of every engine, and routing of requests. Pure: time is a parameter.
//!
//! An engine is routable only if it reports the requested weights, its last update succeeded, no
//! update is in progress, and this process has resumed it (a coordinator that crashes during an
//! update leaves engines paused).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::{EngineCondition, EngineState};
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use crate::core::instruct::{EngineView, KeptGroup};
use crate::engines::progress::Progress;
use crate::engines::streams::Streams;
use crate::engines::suitability::{Limits, Unsuitable};
use crate::engines::weights::Weights;

/// Consecutive failed polls after which an engine is lost and its requests are cancelled.
const MAX_MISSED_POLLS: u32 = 3;
/// First and maximum backoff after a failed call.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a separate observation; `routable` combines them"
)]
#[derive(Debug)]
pub struct Slot {
    pub url: String,
    /// UID of its pod.
    uid: Option<String>,
    index: u32,
    missed: u32,
    answers: bool,
    /// Time of the first missed poll, or of the listing; `None` while the engine answers.
    silent_since: Option<Duration>,
    label: Option<String>,
    /// Limits of the process; `None` before it has described itself.
    limits: Option<Result<Limits, Unsuitable>>,
    /// This process has resumed the engine since it last became reachable.
    pub resumed: bool,
    /// A weight update is in progress.
    pub syncing: bool,
    /// The last update did not succeed: the reported version is not trusted.
    tainted: bool,
    /// Incremented when an update begins or ends; responses to older polls are ignored.
    pub updates: u64,
    failures: u32,
    backoff_until: Duration,
    requests: u32,
    tokens: u64,
    progress: Progress,
    /// Open streams; closed during an update.
    pub streams: Streams,
    /// Version that a hung process reports.
    hung: Option<String>,
    /// Process group of the last broadcast to this process.
    pub group: Option<KeptGroup>,
    /// Cancelled when the engine is lost.
    pub lost: CancellationToken,
}

/// A reservation at an engine.
#[derive(Clone, Debug)]
pub struct Leased {
    pub name: String,
    pub url: String,
    /// Cancelled when the engine is lost.
    pub lost: CancellationToken,
    /// Counts the chunks that the engine sends.
    pub chunks: Arc<AtomicU64>,
    /// Counts the streams of the engine.
    pub streams: Streams,
}

/// All engines by name.
#[derive(Debug, Default)]
pub struct Slots {
    table: BTreeMap<String, Slot>,
}

impl Slots {
    /// Replaces the list of engines. A new URL or UID means another engine.
    pub fn set(&mut self, engines: &[EngineEndpoint], now: Duration) {
        let keep = |name: &str, slot: &Slot| {
            let is_same = |engine: &EngineEndpoint| {
                engine.name == name && engine.url == slot.url && engine.uid == slot.uid
            };
            engines.iter().any(is_same)
        };
        self.table.retain(|name, slot| {
            let kept = keep(name, slot);
            if !kept {
                slot.lost.cancel();
            }
            kept
        });
        for (index, engine) in engines.iter().enumerate() {
            let slot =
                self.table.entry(engine.name.clone()).or_insert_with(|| Slot::new(engine, now));
            slot.index = index as u32;
        }
    }

    pub fn endpoints(&self) -> Vec<(String, String)> {
        self.table.iter().map(|(name, slot)| (name.clone(), slot.url.clone())).collect()
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Slot> {
        self.table.get_mut(name)
    }

    /// Views for instructions.
    pub fn views(&self, now: Duration) -> Vec<EngineView> {
        let view = |(name, slot): (&String, &Slot)| EngineView {
            name: name.clone(),
            index: slot.index,
            usable: slot.usable(now),
            version: slot.version(),
            group: slot.group.clone(),
        };
        self.table.iter().map(view).collect()
    }

    /// States for the operator, given the current weights.
    pub fn states(&self, current: Option<Version>, now: Duration) -> Vec<EngineState> {
        let silent = |slot: &Slot| {
            slot.silent_since
                .map(|since| u32::try_from(now.saturating_sub(since).as_secs()).unwrap_or(u32::MAX))
        };
        let state = |(name, slot): (&String, &Slot)| EngineState {
            name: name.clone(),
            state: slot.condition(current, now),
            version: slot.version(),
            silent_seconds: silent(slot),
            uid: slot.uid.clone(),
            unsuitable: slot.unsuitable().map(ToString::to_string),
        };
        self.table.iter().map(state).collect()
    }

    /// Reserves the least loaded engine with matching weights for `requests` requests with a total
    /// of `tokens` tokens. Ties go to the first by name.
    pub fn lease(
        &mut self,
        weights: Weights,
        requests: u32,
        tokens: u64,
        now: Duration,
    ) -> Option<Leased> {
        let free = |slot: &Slot| {
            slot.requests == 0 || slot.requests.saturating_add(requests) <= slot.max_requests()
        };
        let ready = self.table.iter_mut().filter(|(_, slot)| {
            slot.routable(now)
                && slot.version().is_some_and(|version| weights.allow(version))
                && free(slot)
        });
        let (name, slot) = ready.min_by_key(|(_, slot)| slot.tokens)?;
        slot.requests = slot.requests.saturating_add(requests);
        slot.tokens = slot.tokens.saturating_add(tokens);
        Some(Leased {
            name: name.clone(),
            url: slot.url.clone(),
            lost: slot.lost.clone(),
            chunks: slot.progress.chunks(),
            streams: slot.streams.clone(),
        })
    }

    /// Releases a part of a reservation.
    pub fn release(&mut self, name: &str, url: &str, requests: u32, tokens: u64) {
        if let Some(slot) = self.table.get_mut(name).filter(|slot| slot.url == url) {
            slot.requests = slot.requests.saturating_sub(requests);
            slot.tokens = slot.tokens.saturating_sub(tokens);
        }
    }

    /// Marks engines that generate nothing although requests are in flight. Returns whether a new
    /// one was found.
    pub fn detect_hangs(&mut self, now: Duration) -> bool {
        let mut found = false;
        for slot in self.table.values_mut() {
            let due = slot.requests > 0 && slot.answers && slot.resumed && !slot.syncing;
            if slot.progress.hangs(due, now) {
                slot.mark_hung(now);
                found = true;
            }
        }
        found
    }

    pub fn tokens_in_flight(&self) -> u64 {
        self.table.values().map(|slot| slot.tokens).sum()
    }
}

impl Slot {
    fn new(engine: &EngineEndpoint, now: Duration) -> Self {
        Self {
            url: engine.url.clone(),
            uid: engine.uid.clone(),
            index: 0,
            missed: 0,
            answers: false,
            silent_since: Some(now),
            label: None,
            limits: None,
            resumed: false,
            syncing: false,
            tainted: false,
            updates: 0,
            failures: 0,
            backoff_until: Duration::ZERO,
            requests: 0,
            tokens: 0,
            progress: Progress::new(now),
            streams: Streams::default(),
            hung: None,
            group: None,
            lost: CancellationToken::new(),
        }
    }

    /// Records a response of `/model_info`. A version that this process did not set means that the
    /// engine restarted.
    pub fn answered(&mut self, label: String) {
        if self.hung.as_ref() == Some(&label) {
            return;
        }
        self.hung = None;
        if !self.answers || self.label.as_ref() != Some(&label) {
            let is_update = self.answers && self.syncing;
            self.resumed &= is_update;
            self.limits = self.limits.take().filter(|_| is_update);
            self.group = self.group.take().filter(|_| is_update);
        }
        self.missed = 0;
        self.silent_since = None;
        self.answers = true;
        self.label = Some(label);
    }

    /// Whether its `/server_info` is due.
    pub fn is_undescribed(&self, now: Duration) -> bool {
        self.answers && self.limits.is_none() && now >= self.backoff_until
    }

    /// Records what `/server_info` says.
    pub fn described(&mut self, limits: Result<Limits, Unsuitable>) {
        self.limits = Some(limits);
    }

    fn unsuitable(&self) -> Option<&Unsuitable> {
        self.limits.as_ref()?.as_ref().err()
    }

    /// Records a failed poll that was sent at `asked`. A refused connection means that the process
    /// ended.
    pub fn missed(&mut self, asked: Duration, connection_refused: bool) {
        self.missed = self.missed.saturating_add(1);
        self.hung = self.hung.take().filter(|_| !connection_refused);
        self.silent_since.get_or_insert(asked);
        if self.missed >= MAX_MISSED_POLLS {
            self.mark_lost();
        }
    }

    /// Marks the process as hung: it generates nothing, or its update never ends. It counts as
    /// silent until another process has replaced it, visible by another version or a refused
    /// connection.
    pub fn mark_hung(&mut self, now: Duration) {
        self.hung = self.label.clone();
        self.silent_since = Some(now);
        self.mark_lost();
    }

    /// Resets the state of a lost engine and cancels its requests.
    fn mark_lost(&mut self) {
        self.answers = false;
        self.label = None;
        self.limits = None;
        self.resumed = false;
        self.group = None;
        self.lost.cancel();
        self.lost = CancellationToken::new();
    }

    /// Starts or extends the backoff after a failed call. Failures during a backoff count once.
    pub fn failed(&mut self, now: Duration) {
        if now < self.backoff_until {
            return;
        }
        let wait = BACKOFF.0.saturating_mul(2u32.saturating_pow(self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        self.backoff_until = now.saturating_add(wait.min(BACKOFF.1));
    }

    /// Ends the backoff after a successful call.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.backoff_until = Duration::ZERO;
    }

    /// Starts an update; the reported version is not trusted until it succeeds, and no request is
    /// sent until it ends.
    pub fn update_begins(&mut self) {
        self.syncing = true;
        self.streams.close();
        self.tainted = true;
        self.updates = self.updates.saturating_add(1);
    }

    /// Ends an update, with the verified version if it succeeded.
    pub fn update_ends(&mut self, version: Option<Version>, now: Duration) {
        self.syncing = false;
        self.streams.reopen();
        self.updates = self.updates.saturating_add(1);
        match version {
            Some(version) => {
                self.label = Some(version.to_string());
                self.resumed = true;
                self.tainted = false;
                self.succeeded();
            }
            None => self.failed(now),
        }
    }

    /// The version that the engine reported last.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Version of the weights, if trusted.
    pub fn version(&self) -> Option<Version> {
        self.label.as_deref().filter(|_| !self.tainted).and_then(|label| label.parse().ok())
    }

    /// Whether an update can start.
    pub fn usable(&self, now: Duration) -> bool {
        self.answers && self.is_suitable() && !self.syncing && now >= self.backoff_until
    }

    /// Maximum number of requests in flight.
    fn max_requests(&self) -> u32 {
        let limits = self.limits.as_ref().and_then(|limits| limits.as_ref().ok());
        limits.map_or(0, |limits| limits.requests)
    }

    fn is_suitable(&self) -> bool {
        matches!(self.limits, Some(Ok(_)))
    }

    fn routable(&self, now: Duration) -> bool {
        self.usable(now) && self.resumed && self.missed == 0
    }

    fn condition(&self, current: Option<Version>, now: Duration) -> EngineCondition {
        if !self.answers || now < self.backoff_until {
            EngineCondition::Unreachable
        } else if self.syncing {
            EngineCondition::Syncing
        } else if current.is_some() && self.version() == current && self.is_suitable() {
            EngineCondition::Ready
        } else {
            EngineCondition::Stale
        }
    }
}

#[cfg(test)]
mod tests;
