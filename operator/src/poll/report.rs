//! The last report of a coordinator, and the parts of it whose change triggers a pass. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, EngineState, GroupState};

use super::exchange::{CoordinatorOrder, ExchangeError};
use crate::decide::UNRESPONSIVE_AFTER;

/// The last report of a coordinator. Its status is `None` after a first request that failed.
#[derive(Clone)]
pub(super) struct Report {
    pub(super) identity: String,
    pub(super) status: Option<CoordinatorStatus>,
    /// Set while the coordinator cannot serve a request, or this operator cannot read its status.
    pub(super) unsupported: Option<String>,
    /// Set since the first request without an answer.
    pub(super) silence: Option<Unanswered>,
    /// Restarts of the container at the last answer, or at the first request.
    pub(super) restarts: u32,
}

/// Requests without an answer.
#[derive(Clone)]
pub(super) struct Unanswered {
    pub(super) since: Timestamp,
    pub(super) error: String,
}

impl Report {
    pub(super) fn of_answer(order: &CoordinatorOrder, status: CoordinatorStatus) -> Self {
        Self {
            identity: order.identity.clone(),
            status: Some(status),
            unsupported: None,
            silence: None,
            restarts: order.restarts,
        }
    }

    /// The report after a failed exchange. A rejected request is an answer.
    pub(super) fn without_answer(
        order: &CoordinatorOrder,
        known: Option<&Self>,
        error: &ExchangeError,
        now: Timestamp,
    ) -> Self {
        let known = known.filter(|known| known.identity == order.identity);
        let (unsupported, silence) = match error {
            ExchangeError::Unsupported(message) => (Some(message.clone()), None),
            ExchangeError::Unanswered(error) => {
                let since = known.and_then(|known| Some(known.silence.as_ref()?.since));
                let (since, error) = (since.unwrap_or(now), error.clone());
                (None, Some(Unanswered { since, error }))
            }
        };
        Self {
            identity: order.identity.clone(),
            status: known.and_then(|known| known.status.clone()),
            unsupported: unsupported.or_else(|| known?.unsupported.clone()),
            silence,
            restarts: known.map_or(order.restarts, |known| known.restarts),
        }
    }

    pub(super) fn health(&self, now: Timestamp) -> Health {
        let silence = self.silence.as_ref();
        Health {
            identity: self.identity.clone(),
            unsupported: self.unsupported.clone(),
            is_unresponsive: silence
                .is_some_and(|silence| now.duration_since(silence.since) >= UNRESPONSIVE_AFTER),
        }
    }
}

/// The parts of a report whose change triggers a pass, with or without an answer.
#[derive(PartialEq)]
pub(super) struct Health {
    identity: String,
    unsupported: Option<String>,
    is_unresponsive: bool,
}

/// The parts of a status whose change triggers a pass.
#[derive(PartialEq)]
pub(super) struct ReconcileTrigger {
    pub(super) state: String,
    /// Engines that hold weights of the run, or held them before the update in progress.
    pub(super) weighted: BTreeSet<String>,
    pub(super) progress: (u32, Option<rljob_protocol::version::Version>),
}

impl ReconcileTrigger {
    pub(super) fn of(status: &CoordinatorStatus, last_weighted: Option<&BTreeSet<String>>) -> Self {
        let synced = status.engines.iter().any(|engine| engine.state == EngineCondition::Ready);
        let in_update = |engine: &EngineState| {
            engine.state == EngineCondition::Syncing
                && last_weighted.is_some_and(|last| last.contains(&engine.name))
        };
        let weighted = status
            .engines
            .iter()
            .filter(|engine| engine.version.is_some() || in_update(engine))
            .map(|engine| engine.name.clone())
            .collect();
        let hung = status.engines.iter().filter(|engine| engine.is_hung()).count();
        let of_group = |group: &GroupState| (group.attempt, group.restarts, group.memory.is_some());
        let groups: Vec<_> = status.groups.iter().map(of_group).collect();
        let state = format!(
            "{:?} {:?} {:?} {} {} {:?} {synced} {hung} {} {:?} {} {} {} {} {:?} {:?}",
            status.epoch,
            status.generation,
            status.phase,
            status.attempt,
            status.restarts,
            status.last_failure,
            status.checkpoint.is_some(),
            status.unsupported,
            status.reward_outage.is_some(),
            status.journal_failure.is_some(),
            status.tracker_failure.is_some(),
            status.memory.is_some(),
            status.verifiers.map(|load| load.needed_pods),
            groups,
        );
        Self { state, weighted, progress: (status.step, status.checkpoint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::{facts, report};

    #[test]
    fn a_silence_lasts_from_the_first_failure_to_the_next_answer() {
        let at = crate::decide::test_support::at;
        let job = crate::validate::test_support::validated();
        let order = |restarts| CoordinatorOrder {
            identity: "pod".to_owned(),
            url: String::new(),
            restarts,
            token: String::new(),
            certificate: "".into(),
            server_name: String::new(),
            max_steps: 10,
            desired: crate::decide::desired_for_coordinator(&job, &facts()).unwrap(),
        };
        let lost = || ExchangeError::Unanswered("connection refused".to_owned());
        let answered = Report::of_answer(&order(2), report());
        let silent = Report::without_answer(&order(3), Some(&answered), &lost(), at(0));
        let longer = Report::without_answer(&order(5), Some(&silent), &lost(), at(30));
        let silence = longer.silence.clone().unwrap();
        assert_eq!((silence.since, longer.restarts), (at(0), 2));
        assert_eq!(longer.status, Some(report()), "the last status is kept");
        let is_unresponsive = |second| longer.health(at(second)).is_unresponsive;
        assert!(!is_unresponsive(29) && is_unresponsive(30));
        let other = CoordinatorOrder { identity: "other".to_owned(), ..order(0) };
        let other = Report::without_answer(&other, Some(&longer), &lost(), at(40));
        assert_eq!((other.silence.unwrap().since, other.status), (at(40), None));
        let rejected = ExchangeError::Unsupported("version 9".to_owned());
        let rejected = Report::without_answer(&order(5), Some(&longer), &rejected, at(50));
        assert!(rejected.silence.is_none(), "a rejection is an answer");
    }
}
