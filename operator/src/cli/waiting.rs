//! What a local run waits for, by the newest report of its coordinator. Pure.

use rljob_crds::status::RoleStatus;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, EngineState};

use crate::status::{failure_text, outage_text};

/// What a run waits for.
pub fn waits_for(report: &CoordinatorStatus) -> Option<String> {
    let outage = report.reward_outage.as_ref().map(outage_text);
    let sets = [("reward model", &report.reward_engines), ("teacher", &report.teacher_engines)];
    let engines = sets.into_iter().find_map(|(model, engines)| {
        let RoleStatus { desired, .. } =
            ready_engines(engines).filter(|engines| engines.ready == 0)?;
        Some(format!("sampling waits for the {model}: 0 of {desired} engines are ready"))
    });
    let failure = report.journal_failure.as_ref();
    let storage = failure.map(|cause| format!("the coordinator cannot write: {cause}"));
    let failure = report.reward_failure.as_ref().filter(|failure| !failure.answered);
    storage.or(outage).or(engines).or_else(|| failure.map(failure_text))
}

/// Counts of a set of engines; none in runs without them.
pub fn ready_engines(engines: &[EngineState]) -> Option<RoleStatus> {
    let ready = engines.iter().filter(|engine| engine.state == EngineCondition::Ready);
    let (desired, ready) = (count(engines.len()), count(ready.count()));
    (desired > 0).then_some(RoleStatus { desired, ready })
}

fn count(engines: usize) -> i32 {
    i32::try_from(engines).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::{RewardFailure, RewardOutage};

    use super::*;
    use crate::decide::test_support::report;

    #[test]
    fn a_run_says_what_it_waits_for() {
        let engine = |state| EngineState {
            name: "reward-0".to_owned(),
            state,
            version: None,
            silent_seconds: None,
            uid: None,
            unsuitable: None,
        };
        let with = |state| CoordinatorStatus { reward_engines: vec![engine(state)], ..report() };
        assert_eq!(waits_for(&report()), None);
        assert_eq!(waits_for(&with(EngineCondition::Ready)), None);
        let failed = |answered| RewardFailure {
            reward: "reward brief (python brief of brief.py)".to_owned(),
            cause: "the command ended with exit status: 1".to_owned(),
            answered,
        };
        let after =
            |answered| CoordinatorStatus { reward_failure: Some(failed(answered)), ..report() };
        let expected = "reward brief (python brief of brief.py) failed for a completion: the \
            command ended with exit status: 1";
        assert_eq!(waits_for(&after(false)).as_deref(), Some(expected));
        assert_eq!(waits_for(&after(true)), None);
        let starting = with(EngineCondition::Unreachable);
        let expected = "sampling waits for the reward model: 0 of 1 engines are ready";
        assert_eq!(waits_for(&starting).as_deref(), Some(expected));
        let teacher = CoordinatorStatus {
            teacher_engines: vec![engine(EngineCondition::Unreachable)],
            ..with(EngineCondition::Ready)
        };
        let expected = "sampling waits for the teacher: 0 of 1 engines are ready";
        assert_eq!(waits_for(&teacher).as_deref(), Some(expected));
        let outage = RewardOutage {
            reward: "scored (model)".to_owned(),
            seconds: 3,
            cause: "no engine is ready".to_owned(),
        };
        let waiting = CoordinatorStatus { reward_outage: Some(outage), ..starting };
        let expected = "sampling waits for scored (model): no engine is ready";
        assert_eq!(waits_for(&waiting).as_deref(), Some(expected));
        let full = Some("database or disk is full".to_owned());
        let waiting = CoordinatorStatus { journal_failure: full, ..waiting };
        let expected = "the coordinator cannot write: database or disk is full";
        assert_eq!(waits_for(&waiting).as_deref(), Some(expected));
    }
}
