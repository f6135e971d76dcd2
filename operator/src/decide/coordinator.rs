//! What a coordinator is told, and the fencing number it is told it under.

use rljob_protocol::desired::{CheckpointPolicy, Desired, Mode, RestartPolicy};

use super::Facts;
use crate::validate::ValidatedJob;

/// A fencing number and who holds it. Recorded before the coordinator is told, so that no two
/// coordinators ever act under one number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Epoch {
    /// The number; 0 before the first coordinator.
    pub number: u64,
    /// Identity of the coordinator that holds it.
    pub holder: Option<String>,
}

/// The epoch to record: one more than the recorded one if the coordinator is a new one, or acts
/// under a higher one than is recorded: then the record was lost. A restarted container of the same
/// pod keeps its epoch.
pub fn assign_epoch(recorded: &Epoch, identity: Option<&str>, acts_under: Option<u64>) -> Epoch {
    let highest = recorded.number.max(acts_under.unwrap_or_default());
    match identity {
        Some(identity)
            if recorded.holder.as_deref() != Some(identity) || highest > recorded.number =>
        {
            Epoch { number: highest + 1, holder: Some(identity.to_owned()) }
        }
        _ => recorded.clone(),
    }
}

/// What the coordinator is to be told: a level, to be told again whenever it differs from what its
/// status echoes.
///
/// None while no existing coordinator holds the recorded epoch: then record [`assign_epoch`] first.
pub fn desired_for_coordinator(job: &ValidatedJob, facts: &Facts) -> Option<Desired> {
    let holder = facts.recorded.epoch.holder.as_ref()?;
    if facts.coordinator_identity.as_ref() != Some(holder) {
        return None;
    }
    let (checkpoint, failure_policy) = (&job.spec.checkpoint, &job.spec.failure_policy);
    Some(Desired {
        epoch: facts.recorded.epoch.number,
        generation: facts.generation,
        mode: if facts.suspend { Mode::Drain } else { Mode::Run },
        engines: facts.engines.clone(),
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
    use super::super::test_support::facts;
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn a_new_coordinator_gets_the_next_epoch_and_the_same_one_keeps_it() {
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
    fn nothing_is_said_to_a_coordinator_whose_epoch_is_not_recorded() {
        let mut facts = facts();
        facts.coordinator_identity = Some("another pod".to_owned());
        assert_eq!(desired_for_coordinator(&validated(), &facts), None);
        facts.coordinator_identity = None;
        assert_eq!(desired_for_coordinator(&validated(), &facts), None);
    }

    #[test]
    fn the_level_holds_mode_engines_and_policies() {
        let mut facts = facts();
        facts.suspend = true;
        let expected = Desired {
            epoch: 3,
            generation: 4,
            mode: Mode::Drain,
            engines: facts.engines.clone(),
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
