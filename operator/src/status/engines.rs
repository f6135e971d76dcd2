//! Engines in the status: at most 32, the ones with problems first.

use rljob_crds::status::{EngineStanding, EngineStatus, InferenceStatus, RLJobStatus};
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition};

use crate::decide::Facts;
use crate::desired::Role;
use crate::desired::meta::role_selector_text;
use crate::validate::Job;

/// Limit of the list.
const LIMIT: usize = 32;

/// The inference part of the status.
pub(super) fn inference(
    job: &Job,
    old: &RLJobStatus,
    facts: &Facts,
    keeps_running: bool,
) -> InferenceStatus {
    let counts = facts.roles.inference;
    let known =
        old.inference.as_ref().map(|inference| inference.engines.as_slice()).unwrap_or_default();
    InferenceStatus {
        desired: if keeps_running { job.spec.inference.replicas } else { 0 },
        ready: counts.ready,
        replicas: counts.existing,
        selector: selector(job),
        engines: engines(facts, known),
    }
}

/// Selector for autoscalers. They divide by the number of its pods, which are not engines if these
/// span pods, and report an empty one.
fn selector(job: &Job) -> String {
    if job.spec.inference.pods_per_engine() > 1 {
        return String::new();
    }
    role_selector_text(job, Role::Inference)
}

/// The list; while no coordinator reports, the recorded entries of existing engines.
fn engines(facts: &Facts, known: &[EngineStatus]) -> Vec<EngineStatus> {
    if facts.report().is_none() && !known.is_empty() {
        return known
            .iter()
            .filter(|known| facts.engines.iter().any(|engine| engine.name == known.name))
            .cloned()
            .collect();
    }
    let mut engines: Vec<EngineStatus> =
        facts.engines.iter().map(|engine| status(engine, facts.report())).collect();
    // The sort is stable: by ordinal within a state.
    engines.sort_by_key(|engine| engine.state);
    engines.truncate(LIMIT);
    engines
}

/// Whether the new list has an added engine, or the first report about one.
pub(super) fn any_is_new(old: &[EngineStatus], new: &[EngineStatus]) -> bool {
    let unknown = |engines: &[EngineStatus]| {
        engines.iter().filter(|engine| engine.state == EngineStanding::Unknown).count()
    };
    new.len() > old.len() || unknown(new) < unknown(old)
}

fn status(engine: &EngineEndpoint, report: Option<&CoordinatorStatus>) -> EngineStatus {
    let uid = engine.uid.as_deref().unwrap_or_default();
    let reported = report.and_then(|report| {
        report.engines.iter().find(|reported| reported.is_about(&engine.name, uid))
    });
    let state = match reported.map(|engine| engine.state) {
        None => EngineStanding::Unknown,
        Some(EngineCondition::Unreachable) => EngineStanding::Unreachable,
        Some(EngineCondition::Stale) => EngineStanding::Stale,
        Some(EngineCondition::Syncing) => EngineStanding::Syncing,
        Some(EngineCondition::Ready) => EngineStanding::Ready,
    };
    EngineStatus {
        name: engine.name.clone(),
        state,
        version: reported.and_then(|engine| engine.version).map(|version| version.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::facts;
    use rljob_protocol::status::EngineState;
    use rljob_protocol::version::Version;

    #[test]
    fn engines_with_problems_come_first_and_the_list_is_limited() {
        let mut facts = facts();
        facts.engines = (0..40)
            .map(|index| EngineEndpoint {
                name: format!("e-{index}"),
                url: String::new(),
                uid: None,
            })
            .collect();
        let state = |(index, state): (usize, EngineCondition)| EngineState {
            name: format!("e-{index}"),
            state,
            version: (state == EngineCondition::Ready).then_some(Version { step: 7, attempt: 1 }),
            silent_seconds: None,
            uid: None,
            unsuitable: None,
        };
        let ready = (0..40).map(|index| (index, EngineCondition::Ready));
        let reported = ready.map(|(index, state)| {
            (
                index,
                match index {
                    35 => EngineCondition::Unreachable,
                    3 => EngineCondition::Syncing,
                    _ => state,
                },
            )
        });
        facts.coordinator.as_mut().unwrap().engines =
            reported.filter(|(index, _)| *index != 39).map(state).collect();
        let list = engines(&facts, &[]);
        let short: Vec<(&str, EngineStanding)> =
            list.iter().take(4).map(|engine| (engine.name.as_str(), engine.state)).collect();
        let expected = [
            ("e-35", EngineStanding::Unreachable),
            ("e-39", EngineStanding::Unknown),
            ("e-3", EngineStanding::Syncing),
            ("e-0", EngineStanding::Ready),
        ];
        assert_eq!(short, expected);
        assert_eq!((list.len(), list[3].version.as_deref()), (32, Some("step-7.attempt-1")));
        facts.coordinator = None;
        facts.engines.remove(35);
        assert_eq!(engines(&facts, &list), list[1..], "recorded entries of existing engines");
    }

    #[test]
    fn an_engine_is_new_when_it_is_added_and_when_it_is_first_reported() {
        let engine =
            |name: &str, state| EngineStatus { name: name.to_owned(), state, version: None };
        let (unknown, ready, stale) = (
            engine("e-1", EngineStanding::Unknown),
            engine("e-1", EngineStanding::Ready),
            engine("e-1", EngineStanding::Stale),
        );
        assert!(
            any_is_new(&[], std::slice::from_ref(&unknown))
                && any_is_new(&[unknown], std::slice::from_ref(&ready))
        );
        assert!(!any_is_new(&[ready], &[stale]));
    }
}
