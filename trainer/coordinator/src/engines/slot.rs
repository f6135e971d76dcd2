//! State of one engine.
//!
//! An engine is routable only if it reports the requested weights, its last update succeeded, no
//! update is in progress, and this process has resumed it (a coordinator that crashes during an
//! update leaves engines paused). One with fixed weights, of a reward model, is never updated nor
//! paused.

use std::time::Duration;

use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::{EngineCondition, HUNG_SECONDS};
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use crate::core::instruct::KeptGroup;
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
    pub(super) uid: Option<String>,
    pub(super) index: u32,
    /// Its weights are those of its model folder, have no version and never change.
    has_fixed_weights: bool,
    missed: u32,
    pub(super) answers: bool,
    /// Time of the first missed poll, or of the listing; `None` while the engine answers.
    pub(super) silent_since: Option<Duration>,
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
    pub(super) requests: u32,
    pub(super) tokens: u64,
    /// When it got the first of its requests; `None` without requests.
    pub(super) busy_since: Option<Duration>,
    pub(super) progress: Progress,
    /// Open streams; closed during an update.
    pub streams: Streams,
    /// Version that a hung process reports.
    hung: Option<String>,
    /// Process group of the last broadcast to this process.
    pub group: Option<KeptGroup>,
    /// Updates since elements of the weights of this process were read back; `None` before.
    unchecked: Option<u32>,
    /// Cancelled when the engine is lost.
    pub lost: CancellationToken,
}

impl Slot {
    pub(super) fn new(engine: &EngineEndpoint, has_fixed_weights: bool, now: Duration) -> Self {
        Self {
            url: engine.url.clone(),
            uid: engine.uid.clone(),
            index: 0,
            has_fixed_weights,
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
            busy_since: None,
            progress: Progress::new(now),
            streams: Streams::default(),
            hung: None,
            group: None,
            unchecked: None,
            lost: CancellationToken::new(),
        }
    }

    /// Records a response of `/model_info`. A version that this process did not set means that the
    /// engine restarted. Returns since when the engine had not answered, if it had not.
    pub fn answered(&mut self, label: String) -> Option<Duration> {
        if self.hung.as_ref() == Some(&label) {
            return None;
        }
        self.hung = None;
        if !self.answers || self.label.as_ref() != Some(&label) {
            let is_update = self.answers && self.syncing;
            self.resumed &= is_update;
            self.limits = self.limits.take().filter(|_| is_update);
            self.group = self.group.take().filter(|_| is_update);
            self.unchecked = self.unchecked.filter(|_| is_update);
        }
        self.missed = 0;
        self.answers = true;
        self.label = Some(label);
        self.silent_since.take()
    }

    /// Whether its `/server_info` is due.
    pub fn is_undescribed(&self, now: Duration) -> bool {
        self.answers && self.limits.is_none() && now >= self.backoff_until
    }

    /// Records what `/server_info` says.
    pub fn described(&mut self, limits: Result<Limits, Unsuitable>) {
        self.limits = Some(limits);
    }

    pub(super) fn unsuitable(&self) -> Option<&Unsuitable> {
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

    /// Seconds without an answer; `None` if it answers. A process that hangs counts as silent for
    /// long enough to be replaced at once.
    pub(super) fn silent_seconds(&self, now: Duration) -> Option<u32> {
        let since = self.silent_since?;
        let seconds = u32::try_from(now.saturating_sub(since).as_secs()).unwrap_or(u32::MAX);
        Some(if self.hung.is_some() { seconds.max(HUNG_SECONDS) } else { seconds })
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
        self.unchecked = None;
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
                self.unchecked = self.unchecked.map(|updates| updates.saturating_add(1));
                self.succeeded();
            }
            None => self.failed(now),
        }
    }

    /// Whether elements of the weights of this process were never read back.
    pub fn was_never_checked(&self) -> bool {
        self.unchecked.is_none()
    }

    /// Updates since elements were read back; 0 of a process whose first update is pending.
    pub fn updates_unchecked(&self) -> u32 {
        self.unchecked.unwrap_or(0)
    }

    /// Records that elements were read back.
    pub fn checked(&mut self) {
        self.unchecked = Some(0);
    }

    /// Whether the engine has this version, and no update is in progress.
    pub fn holds(&self, version: Version) -> bool {
        !self.syncing && self.version() == Some(version)
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
    pub(super) fn max_requests(&self) -> u32 {
        let limits = self.limits.as_ref().and_then(|limits| limits.as_ref().ok());
        limits.map_or(0, |limits| limits.requests)
    }

    fn is_suitable(&self) -> bool {
        matches!(self.limits, Some(Ok(_)))
    }

    /// Whether requests for these weights may go to the engine.
    pub(super) fn routable(&self, weights: Weights, now: Duration) -> bool {
        let holds = || self.version().is_some_and(|version| weights.allow(version));
        let is_ready = self.usable(now) && self.is_serving() && self.missed == 0;
        is_ready && (self.has_fixed_weights || holds())
    }

    /// Whether the process accepts requests: engines whose weights change may be paused.
    pub(super) fn is_serving(&self) -> bool {
        self.answers && (self.resumed || self.has_fixed_weights) && !self.syncing
    }

    /// `is_current` tells whether weights of a version are those that the engine must hold.
    pub(super) fn condition(
        &self,
        is_current: impl Fn(Option<Version>) -> bool,
        now: Duration,
    ) -> EngineCondition {
        if !self.answers || now < self.backoff_until {
            EngineCondition::Unreachable
        } else if self.syncing {
            EngineCondition::Syncing
        } else if (self.has_fixed_weights || is_current(self.version())) && self.is_suitable() {
            EngineCondition::Ready
        } else {
            EngineCondition::Stale
        }
    }
}
