//! The coordinator's epoch and desired state.

use rljob_protocol::desired::{CheckpointPolicy, Desired, Mode, RestartPolicy};

use super::facts::{Epoch, Facts};
use crate::validate::Job;

/// Assigns the epoch to record: a new number for a new coordinator, and for one that acts under a
/// higher number than the recorded one, which means that the record was lost. A restarted container
/// of the same pod keeps its epoch.
pub fn assign_epoch(recorded: &Epoch, identity: Option<&str>, acts_under: Option<u64>) -> Epoch {
    let highest = recorded.number.max(acts_under.unwrap_or_default());
    match identity {
        Some(identity)
            if recorded.holder.as_deref() != Some(identity) || highest > recorded.number =>
        {
            Epoch { number: highest.saturating_add(1), holder: Some(identity.to_owned()) }
        }
        _ => recorded.clone(),
    }
}

/// Whether the coordinator holds the recorded epoch and may be training, and this operator has not
/// asked it yet. A new operator asks before it changes the status of a running job.
pub(super) fn awaits_first_answer(facts: &Facts) -> bool {
    facts.coordinator_unasked && facts.recorded.reported && facts.epoch == facts.recorded.epoch
}

/// The desired state that the coordinator receives whenever its status echoes another one.
///
/// `None` while no coordinator holds the epoch of these facts.
pub fn desired_for_coordinator(job: &Job, facts: &Facts) -> Option<Desired> {
    let holder = facts.epoch.holder.as_ref()?;
    if facts.coordinator_identity.as_ref() != Some(holder) {
        return None;
    }
    let (checkpoint, failure_policy) = (&job.spec.checkpoint, &job.spec.failure_policy);
    Some(Desired {
        epoch: facts.epoch.number,
        generation: facts.generation,
        mode: if facts.must_stop() { Mode::Drain } else { Mode::Run },
        engines: facts.engines.clone(),
        evaluation_engines: facts.evaluation_engines.clone(),
        reward_engines: facts.reward_engines.clone(),
        teacher_engines: facts.teacher_engines.clone(),
        supervisors: facts.supervisors.clone(),
        verifiers: facts.verifiers.clone(),
        incidents: facts.recorded.incidents.clone(),
        checkpoint: CheckpointPolicy {
            every_steps: checkpoint.every_steps,
            keep_last: checkpoint.keep_last,
            export_every_steps: checkpoint.export_every_steps,
        },
        restart: RestartPolicy {
            max_restarts: failure_policy.max_restarts,
            backoff_initial_seconds: failure_policy.backoff.initial_seconds,
            backoff_max_seconds: failure_policy.backoff.max_seconds,
            hang_timeout_seconds: failure_policy.hang_timeout_seconds,
            rules: failure_policy.rules.clone(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{at, facts, outcome};
    use super::super::{Decision, decide};
    use rljob_crds::status::Incident;

    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn a_new_coordinator_gets_the_next_epoch_and_a_known_one_keeps_its_own() {
        let held = |number, holder: &str| Epoch { number, holder: Some(holder.to_owned()) };
        for (recorded, identity, acts_under, expected) in [
            (Epoch::default(), None, None, Epoch::default()),
            (Epoch::default(), Some("pod-a"), None, held(1, "pod-a")),
            (held(1, "pod-a"), Some("pod-a"), Some(1), held(1, "pod-a")),
            (held(1, "pod-a"), None, None, held(1, "pod-a")),
            (held(1, "pod-a"), Some("pod-b"), None, held(2, "pod-b")),
            (held(7, "pod-b"), Some("pod-a"), None, held(8, "pod-a")),
            (held(2, "pod-a"), Some("pod-a"), Some(1), held(2, "pod-a")),
            // The status was restored from a backup, or empty.
            (held(1, "pod-a"), Some("pod-a"), Some(4), held(5, "pod-a")),
            (Epoch::default(), Some("pod-a"), Some(4), held(5, "pod-a")),
        ] {
            assert_eq!(
                assign_epoch(&recorded, identity, acts_under),
                expected,
                "{recorded:?} {identity:?} {acts_under:?}"
            );
        }
    }

    #[test]
    fn a_recorded_run_is_not_changed_before_its_coordinator_was_asked() {
        let job = validated();
        let mut unasked = facts();
        unasked.coordinator_unasked = true;
        assert_eq!(decide(&job, &unasked, at(0)), Decision::AskCoordinator);
        let suspended = Facts { suspend: true, ..unasked.clone() };
        assert_eq!(decide(&job, &suspended, at(0)), Decision::AskCoordinator);
        let mut new_run = unasked.clone();
        new_run.recorded.reported = false;
        assert_eq!(decide(&job, &new_run, at(0)), Decision::Run);
        let mut new_coordinator = unasked.clone();
        new_coordinator.recorded.epoch.number = 2;
        assert_eq!(decide(&job, &new_coordinator, at(0)), Decision::Run);
        unasked.recorded.outcome = Some(outcome());
        assert_eq!(decide(&job, &unasked, at(0)), Decision::Finished(outcome()));
    }

    #[test]
    fn only_the_holder_of_the_epoch_receives_a_desired_state() {
        let mut facts = facts();
        facts.coordinator_identity = Some("another pod".to_owned());
        assert_eq!(desired_for_coordinator(&validated(), &facts), None);
        facts.coordinator_identity = None;
        assert_eq!(desired_for_coordinator(&validated(), &facts), None);
    }

    #[test]
    fn the_desired_state_has_mode_engines_and_policies() {
        let mut facts = facts();
        facts.suspend = true;
        let incident = Incident {
            reason: "Evicted".to_owned(),
            message: "pod sums-trainer-0 was evicted".to_owned(),
            pod: "sums-trainer-0".to_owned(),
            ..Incident::default()
        };
        facts.recorded.incidents = vec![incident.clone()];
        let expected = Desired {
            epoch: 3,
            generation: 4,
            mode: Mode::Drain,
            engines: facts.engines.clone(),
            evaluation_engines: vec![],
            reward_engines: vec![],
            teacher_engines: vec![],
            supervisors: facts.supervisors.clone(),
            verifiers: vec![],
            incidents: vec![incident],
            checkpoint: CheckpointPolicy {
                every_steps: 20,
                keep_last: 3,
                export_every_steps: Some(5),
            },
            restart: RestartPolicy {
                max_restarts: 3,
                backoff_initial_seconds: 1,
                backoff_max_seconds: 300,
                hang_timeout_seconds: 1800,
                rules: vec![],
            },
        };
        let mut job = validated();
        job.spec.checkpoint.export_every_steps = Some(5);
        assert_eq!(desired_for_coordinator(&job, &facts), Some(expected));
    }
}
