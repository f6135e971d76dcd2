//! What each engine is good for, as a table; pure, time is a parameter.
//!
//! An engine is routed to only if it holds weights that were asked for, by its own word and by
//! ours: no update of it failed since, it is not being updated, and this process has told it to
//! continue (a coordinator that died during an update leaves engines paused).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::{EngineCondition, EngineState};
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use super::weights::Weights;
use crate::core::instruct::EngineView;

/// Most requests in flight at one engine.
pub const MAX_REQUESTS: u32 = 256;
/// So many polls in a row fail before an engine counts as lost; then what is in flight there is
/// given up.
const POLLS: u32 = 3;
/// First and longest time for which an engine that failed is left alone.
const COOLING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// One engine.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an observation of its own; only some combinations are routable, and `routable` says which"
)]
#[derive(Debug)]
pub struct Slot {
    /// Base URL.
    pub url: String,
    index: u32,
    missed: u32,
    answers: bool,
    /// When it last answered, or was listed; none while it answers.
    silent_since: Option<Duration>,
    label: Option<String>,
    /// This process has told it to continue since it last came back.
    pub resumed: bool,
    /// Its weights are being updated.
    pub syncing: bool,
    /// An update failed half-way: the label proves nothing.
    tainted: bool,
    /// Grows when an update begins or ends: what was asked before is old news.
    pub updates: u64,
    failures: u32,
    cooling_until: Duration,
    requests: u32,
    tokens: u64,
    progress: Progress,
    /// Of a process that hangs: what it says it holds.
    hung: Option<String>,
    /// Cancelled when the engine is lost: requests in flight end at once.
    pub lost: CancellationToken,
}

/// Room that was reserved at an engine.
#[derive(Debug)]
pub struct Leased {
    /// The engine's name.
    pub name: String,
    /// Its URL.
    pub url: String,
    /// Cancelled when the engine is lost.
    pub lost: CancellationToken,
    /// Counts what comes from it.
    pub chunks: Arc<AtomicU64>,
}

/// All engines, by name.
#[derive(Debug, Default)]
pub struct Slots {
    table: BTreeMap<String, Slot>,
}

impl Slots {
    /// Takes the list of engines that exist. One under a new URL is another engine.
    pub fn set(&mut self, engines: &[EngineEndpoint], now: Duration) {
        let keep = |name: &str, slot: &Slot| {
            engines.iter().any(|engine| engine.name == name && engine.url == slot.url)
        };
        self.table.retain(|name, slot| {
            let kept = keep(name, slot);
            if !kept {
                slot.lost.cancel();
            }
            kept
        });
        for (index, engine) in engines.iter().enumerate() {
            let slot = self
                .table
                .entry(engine.name.clone())
                .or_insert_with(|| Slot::new(&engine.url, now));
            slot.index = index as u32;
        }
    }

    /// Names and URLs.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        self.table.iter().map(|(name, slot)| (name.clone(), slot.url.clone())).collect()
    }

    /// An engine.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Slot> {
        self.table.get_mut(name)
    }

    /// The engines as instructions see them.
    pub fn views(&self, now: Duration) -> Vec<EngineView> {
        let view = |(name, slot): (&String, &Slot)| EngineView {
            name: name.clone(),
            index: slot.index,
            usable: slot.usable(now),
            version: slot.version(),
        };
        self.table.iter().map(view).collect()
    }

    /// The engines as the operator sees them, given the current weights.
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
        };
        self.table.iter().map(state).collect()
    }

    /// Reserves the least loaded engine that holds such weights for `requests` requests of `tokens`
    /// tokens in all. Ties go to the first by name.
    pub fn lease(
        &mut self,
        weights: Weights,
        requests: u32,
        tokens: u64,
        now: Duration,
    ) -> Option<Leased> {
        let free = |slot: &Slot| slot.requests == 0 || slot.requests + requests <= MAX_REQUESTS;
        let ready = self.table.iter_mut().filter(|(_, slot)| {
            slot.routable(now)
                && slot.version().is_some_and(|version| weights.allow(version))
                && free(slot)
        });
        let (name, slot) = ready.min_by_key(|(_, slot)| slot.tokens)?;
        slot.requests += requests;
        slot.tokens += tokens;
        Some(Leased {
            name: name.clone(),
            url: slot.url.clone(),
            lost: slot.lost.clone(),
            chunks: slot.progress.chunks(),
        })
    }

    /// Gives back a part of a reservation.
    pub fn release(&mut self, name: &str, url: &str, requests: u32, tokens: u64) {
        if let Some(slot) = self.table.get_mut(name).filter(|slot| slot.url == url) {
            slot.requests = slot.requests.saturating_sub(requests);
            slot.tokens = slot.tokens.saturating_sub(tokens);
        }
    }

    /// Looks for engines that generate nothing of what they were asked for. Answers whether there
    /// is a new one.
    pub fn watch(&mut self, now: Duration) -> bool {
        let mut found = false;
        for slot in self.table.values_mut() {
            let due = slot.requests > 0 && slot.answers && slot.resumed && !slot.syncing;
            if slot.progress.hangs(due, now) {
                slot.hangs(now);
                found = true;
            }
        }
        found
    }

    /// Tokens in flight at all engines.
    pub fn tokens_in_flight(&self) -> u64 {
        self.table.values().map(|slot| slot.tokens).sum()
    }
}

impl Slot {
    fn new(url: &str, now: Duration) -> Self {
        Self {
            url: url.to_owned(),
            index: 0,
            missed: 0,
            answers: false,
            silent_since: Some(now),
            label: None,
            resumed: false,
            syncing: false,
            tainted: false,
            updates: 0,
            failures: 0,
            cooling_until: Duration::ZERO,
            requests: 0,
            tokens: 0,
            progress: Progress::new(now),
            hung: None,
            lost: CancellationToken::new(),
        }
    }

    /// `/model_info` answered. Another label than before, that nobody here set, is a restarted
    /// process.
    pub fn answered(&mut self, label: String) {
        if self.hung.as_ref() == Some(&label) {
            return;
        }
        self.hung = None;
        if !self.answers || self.label.as_ref() != Some(&label) {
            self.resumed &= self.answers && self.syncing;
        }
        self.missed = 0;
        self.silent_since = None;
        self.answers = true;
        self.label = Some(label);
    }

    /// `/model_info`, asked at `asked`, did not answer; whether its process has ended is known if
    /// `nobody_listens`.
    pub fn missed(&mut self, asked: Duration, nobody_listens: bool) {
        self.missed += 1;
        self.hung = self.hung.take().filter(|_| !nobody_listens);
        self.silent_since.get_or_insert(asked);
        if self.missed >= POLLS {
            self.gone();
        }
    }

    /// It generates nothing, or its update never ends: as good as silent until another process is
    /// there, which holds other weights or was not there for a moment.
    pub fn hangs(&mut self, now: Duration) {
        self.hung = self.label.clone();
        self.silent_since = Some(now);
        self.gone();
    }

    /// It does not answer at all: forget what it held, end what is in flight.
    fn gone(&mut self) {
        self.answers = false;
        self.label = None;
        self.resumed = false;
        self.lost.cancel();
        self.lost = CancellationToken::new();
    }

    /// A call failed: leave the engine alone for a while, longer each time. Requests that fail
    /// together count once.
    pub fn failed(&mut self, now: Duration) {
        if now < self.cooling_until {
            return;
        }
        let wait = COOLING.0 * 2u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        self.cooling_until = now + wait.min(COOLING.1);
    }

    /// A call worked.
    pub fn worked(&mut self) {
        self.failures = 0;
        self.cooling_until = Duration::ZERO;
    }

    /// An update began: until it ends well, the label proves nothing.
    pub fn update_begins(&mut self) {
        self.syncing = true;
        self.tainted = true;
        self.updates += 1;
    }

    /// The update ended; `version` if it was verified.
    pub fn update_ends(&mut self, version: Option<Version>, now: Duration) {
        self.syncing = false;
        self.updates += 1;
        match version {
            Some(version) => {
                self.label = Some(version.to_string());
                self.resumed = true;
                self.tainted = false;
                self.worked();
            }
            None => self.failed(now),
        }
    }

    /// The weights it is trusted to hold.
    pub fn version(&self) -> Option<Version> {
        self.label.as_deref().filter(|_| !self.tainted).and_then(|label| label.parse().ok())
    }

    /// Whether an update can be tried.
    pub fn usable(&self, now: Duration) -> bool {
        self.answers && !self.syncing && now >= self.cooling_until
    }

    fn routable(&self, now: Duration) -> bool {
        self.usable(now) && self.resumed && self.missed == 0
    }

    fn condition(&self, current: Option<Version>, now: Duration) -> EngineCondition {
        if !self.answers || now < self.cooling_until {
            EngineCondition::Unreachable
        } else if self.syncing {
            EngineCondition::Syncing
        } else if current.is_some() && self.version() == current {
            EngineCondition::Ready
        } else {
            EngineCondition::Stale
        }
    }
}

#[cfg(test)]
mod tests;
