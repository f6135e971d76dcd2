//! A list of conditions under construction.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use rljob_crds::names::{
    CONDITION_READY, CONDITION_RECONCILING, CONDITION_STALLED, CONDITION_SUCCEEDED,
    REASON_AS_EXPECTED,
};
use rljob_crds::status::RLJobStatus;

/// Status of a condition.
#[derive(Clone, Copy)]
pub(super) enum Truth {
    True,
    False,
    Unknown,
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A row of the truth table: `Succeeded`, `Ready`, `Reconciling` and `Stalled`.
#[derive(Clone, Copy)]
pub(super) enum RunState {
    /// Starting, restarting, draining, releasing.
    Progressing,
    /// Running or suspended.
    Settled,
    Succeeded,
    Failed,
    /// Waiting for the user, whose change can still let the run succeed.
    Stalled,
}

/// Conditions under construction, with the old ones for their transition times.
pub(super) struct Conditions<'a> {
    old: &'a RLJobStatus,
    generation: i64,
    pub(super) now: Timestamp,
    pub(super) list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    pub(super) fn new(old: &'a RLJobStatus, generation: i64, now: Timestamp) -> Self {
        Self { old, generation, now, list: Vec::new() }
    }

    pub(super) fn old(&self, type_: &str) -> Option<&'a Condition> {
        self.old.conditions.iter().find(|condition| condition.type_ == type_)
    }

    pub(super) fn set(
        &mut self,
        type_: &str,
        is: impl Into<Truth>,
        reason: &str,
        message: impl Into<String>,
    ) {
        let status = match is.into() {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        };
        let kept = self
            .old(type_)
            .filter(|old| old.status == status)
            .map(|old| old.last_transition_time.clone());
        self.list.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: kept.unwrap_or(Time(self.now)),
            observed_generation: Some(self.generation),
        });
    }

    pub(super) fn set_summary(&mut self, state: RunState, reason: &str, message: &str) {
        let succeeded = match state {
            RunState::Progressing | RunState::Settled | RunState::Stalled => Truth::Unknown,
            RunState::Succeeded => Truth::True,
            RunState::Failed => Truth::False,
        };
        let is_ready = matches!(state, RunState::Settled | RunState::Succeeded);
        self.set(CONDITION_SUCCEEDED, succeeded, reason, message);
        self.set(CONDITION_READY, is_ready, reason, message);
        for (type_, is) in [
            (CONDITION_RECONCILING, matches!(state, RunState::Progressing)),
            (CONDITION_STALLED, matches!(state, RunState::Failed | RunState::Stalled)),
        ] {
            let (reason, message) = if is { (reason, message) } else { (REASON_AS_EXPECTED, "") };
            self.set(type_, is, reason, message);
        }
    }
}

impl Conditions<'_> {
    /// Adds the conditions of these whose type is not set yet: those that only some jobs have.
    pub(super) fn add_missing(&mut self, parts: &[Condition]) {
        for part in parts {
            if self.list.iter().all(|own| own.type_ != part.type_) {
                let observed_generation = Some(self.generation);
                self.list.push(Condition { observed_generation, ..part.clone() });
            }
        }
    }

    /// Restores the recorded condition `Succeeded` of a run that has ended.
    pub(super) fn keep_outcome(&mut self) {
        let recorded = self.old(CONDITION_SUCCEEDED).cloned();
        let current = self.list.iter_mut().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
        if let (Some(current), Some(recorded)) = (current, recorded) {
            *current = Condition { observed_generation: current.observed_generation, ..recorded };
        }
    }
}
