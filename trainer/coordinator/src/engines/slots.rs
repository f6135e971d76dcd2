//! Engine table: state of every engine, and routing of requests. Pure: time is a parameter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::EngineState;
use rljob_protocol::trace::MAX_SPANS;
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use crate::core::instruct::EngineView;
use crate::engines::queue::Wanted;
use crate::engines::slot::Slot;
use crate::engines::streams::Streams;
use crate::timeline::REQUESTS;

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
    /// Whether the engines' weights never change; see [`Self::with_fixed_weights`].
    have_fixed_weights: bool,
    /// Time in which engines responded and had no request, summed over them.
    idle: Duration,
    /// Until when `idle` is counted.
    counted: Duration,
    /// What engines did; see [`Self::take_spans`].
    spans: Vec<EngineSpan>,
}

/// Something that an engine did, with its begin and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSpan {
    pub engine: String,
    pub name: &'static str,
    pub times: (Duration, Duration),
}

impl Slots {
    /// A table of engines that keep the weights of their model folder, which have no version.
    pub fn with_fixed_weights() -> Self {
        Self { have_fixed_weights: true, ..Self::default() }
    }

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
            let new = || Slot::new(engine, self.have_fixed_weights, now);
            let slot = self.table.entry(engine.name.clone()).or_insert_with(new);
            slot.index = index as u32;
        }
    }

    /// Counts the time since the last call for each engine that has no request now.
    pub fn count_idle(&mut self, now: Duration) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.counted, now));
        let idle = self.table.values().filter(|slot| slot.answers && slot.requests == 0);
        let engines = u32::try_from(idle.count()).unwrap_or(u32::MAX);
        self.idle = self.idle.saturating_add(passed.saturating_mul(engines));
    }

    /// Time in which engines responded and had no request, summed over them.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Removes the times in which engines had requests and in which they did not answer,
    /// [`MAX_SPANS`] at most. An engine that has requests begins another time now.
    pub fn take_spans(&mut self, now: Duration) -> Vec<EngineSpan> {
        for (name, slot) in &mut self.table {
            if let Some(began) = slot.busy_since.replace(now).filter(|began| *began < now) {
                let engine = name.clone();
                self.spans.push(EngineSpan { engine, name: REQUESTS, times: (began, now) });
            }
            slot.busy_since = slot.busy_since.filter(|_| slot.requests > 0);
        }
        std::mem::take(&mut self.spans)
    }

    /// Adds what an engine did from the first time to the second.
    pub fn add_span(&mut self, engine: &str, name: &'static str, times: (Duration, Duration)) {
        if self.spans.len() < MAX_SPANS {
            self.spans.push(EngineSpan { engine: engine.to_owned(), name, times });
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
        self.states_by(|version| current.is_some() && version == current, now)
    }

    /// States of engines that only evaluate, given the weights of the evaluation in progress.
    /// Between evaluations an engine may hold any weights.
    pub fn evaluation_states(&self, current: Option<Version>, now: Duration) -> Vec<EngineState> {
        self.states_by(|version| current.is_none() || version == current, now)
    }

    fn states_by(
        &self,
        is_current: impl Fn(Option<Version>) -> bool,
        now: Duration,
    ) -> Vec<EngineState> {
        let state = |(name, slot): (&String, &Slot)| EngineState {
            name: name.clone(),
            state: slot.condition(&is_current, now),
            version: slot.version(),
            silent_seconds: slot.silent_seconds(now),
            uid: slot.uid.clone(),
            unsuitable: slot.unsuitable().map(ToString::to_string),
        };
        self.table.iter().map(state).collect()
    }

    /// Reserves the preferred engine if it is free, else the least loaded one with matching
    /// weights. Ties go to the first by name.
    pub fn lease(&mut self, wanted: &Wanted, now: Duration) -> Option<Leased> {
        let Wanted { preferred, weights, requests, tokens } = wanted;
        let (preferred, requests, tokens) = (preferred.as_deref(), *requests, *tokens);
        let free = |slot: &Slot| {
            slot.requests == 0 || slot.requests.saturating_add(requests) <= slot.max_requests()
        };
        let ready =
            self.table.iter_mut().filter(|(_, slot)| slot.routable(*weights, now) && free(slot));
        let (name, slot) =
            ready.min_by_key(|(name, slot)| (preferred != Some(name.as_str()), slot.tokens))?;
        slot.busy_since = slot.busy_since.or(Some(now));
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
    pub fn release(&mut self, leased: &Leased, requests: u32, tokens: u64, now: Duration) {
        let slot = self.table.get_mut(&leased.name).filter(|slot| slot.url == leased.url);
        let Some(slot) = slot else { return };
        slot.requests = slot.requests.saturating_sub(requests);
        slot.tokens = slot.tokens.saturating_sub(tokens);
        if slot.requests == 0
            && let Some(began) = slot.busy_since.take()
        {
            self.add_span(&leased.name, REQUESTS, (began, now));
        }
    }

    /// Marks engines that generate nothing although requests are in flight. Returns whether a new
    /// one was found.
    pub fn detect_hangs(&mut self, now: Duration) -> bool {
        let mut found = false;
        for slot in self.table.values_mut() {
            let due = slot.requests > 0 && slot.is_serving();
            if slot.progress.hangs(due, now) {
                slot.mark_hung(now);
                found = true;
            }
        }
        found
    }

    /// Requests that engines process.
    pub fn requests_in_flight(&self) -> u32 {
        self.table.values().map(|slot| slot.requests).fold(0, u32::saturating_add)
    }

    pub fn tokens_in_flight(&self) -> u64 {
        self.table.values().map(|slot| slot.tokens).sum()
    }
}

#[cfg(test)]
mod tests;
