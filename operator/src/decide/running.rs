//! Policies of a run that must have pods: whether it is training, and how many pods it has.

use jiff::{SignedDuration, Timestamp};
use rljob_protocol::metrics;
use rljob_protocol::status::Phase;

use super::decision::{Decision, Wait, WantedRoles};
use super::facts::Facts;
use crate::validate::Job;

/// Time without an answer after which a coordinator counts as unresponsive.
pub const UNRESPONSIVE_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Duration of steps without progress after which a run is reported, in durations of the last step.
const STEP_TIMES: f64 = 10.0;

/// Waits while processes are missing, or while the coordinator reports that it waits.
pub(super) fn starting(facts: &Facts) -> Option<Decision> {
    match facts.report().map(|report| report.phase) {
        Some(Phase::Running) => None,
        Some(Phase::Restarting) => Some(Decision::Start(Wait::Restarting)),
        // Draining and Drained without suspension: the run was resumed and the coordinator does not
        // know yet.
        None
        | Some(
            Phase::Starting | Phase::Draining | Phase::Drained | Phase::Finished | Phase::Failed,
        ) => Some(Decision::Start(Wait::Starting)),
    }
}

/// Stalls a job whose first objects cannot be created.
pub(super) fn cannot_start(facts: &Facts) -> Option<Decision> {
    let obstacle = facts.obstacle.as_ref().filter(|obstacle| obstacle.is_blocking())?;
    (!facts.recorded.started)
        .then(|| Decision::Stall { reason: obstacle.reason, message: obstacle.message.clone() })
}

/// Waits for a coordinator that has not answered for [`UNRESPONSIVE_AFTER`].
pub(super) fn unresponsive(facts: &Facts, now: Timestamp) -> Option<Decision> {
    let silence = facts.silence.as_ref()?;
    let age = now.duration_since(silence.since);
    (age >= UNRESPONSIVE_AFTER).then_some(Decision::Start(Wait::Unresponsive))
}

/// Waits for a storage that takes no writes.
pub(super) fn storage_unavailable(facts: &Facts) -> Option<Decision> {
    let phases = [Phase::Starting, Phase::Running, Phase::Restarting];
    let report = facts.storage_report().filter(|report| phases.contains(&report.phase))?;
    report.journal_failure.is_some().then_some(Decision::Start(Wait::Storage))
}

/// Waits for a verifier that is down.
pub(super) fn reward_unavailable(facts: &Facts) -> Option<Decision> {
    let report = facts.report().filter(|report| report.phase == Phase::Running)?;
    report.reward_outage.is_some().then_some(Decision::Start(Wait::Reward))
}

/// Waits while no step is completed for longer than steps take.
pub(super) fn no_progress(job: &Job, facts: &Facts, now: Timestamp) -> Option<Decision> {
    let due = progress_due(job, facts)?;
    (now >= due).then_some(Decision::Start(Wait::NoProgress))
}

/// The time until which a training run must complete a step: `failurePolicy.hangTimeoutSeconds`, or
/// [`STEP_TIMES`] times the duration of the last step if that is longer, after the last change.
pub fn progress_due(job: &Job, facts: &Facts) -> Option<Timestamp> {
    // An evaluation has no steps.
    let trains = job.spec.algorithm.has_learners();
    let report = facts.report().filter(|report| report.phase == Phase::Running && trains)?;
    // The last evaluations follow the last step, and may take longer. Without an engine they wait.
    let is_evaluated = report.step >= report.total_steps
        && report.pending_evaluations.is_some_and(|pending| pending > 0)
        && facts.roles.evaluation.ready > 0;
    if is_evaluated {
        return None;
    }
    let (_, since) = facts.recorded.progress.filter(|(step, _)| *step == report.step)?;
    let seconds =
        |name| report.metrics.as_ref().and_then(|step| step.get(name)).unwrap_or_default();
    let step: f64 = [metrics::ROLLOUT_SECONDS, metrics::TRAIN_SECONDS, metrics::SYNC_SECONDS]
        .map(seconds)
        .iter()
        .sum();
    let steps = SignedDuration::try_from_secs_f64(step * STEP_TIMES).ok()?;
    let hang = i64::from(job.spec.failure_policy.hang_timeout_seconds);
    since.checked_add(steps.max(SignedDuration::from_secs(hang))).ok()
}

/// The roles that have pods after this decision.
///
/// Roles with GPUs start only after the first report of a coordinator: the operator cannot read the
/// run directory, which may hold a finished run of a deleted and recreated job.
pub fn wanted_roles(job: &Job, facts: &Facts, decision: &Decision) -> WantedRoles {
    let engines = num_engines(job, facts);
    match decision.keeps_running() {
        false => WantedRoles::Nothing,
        true if !facts.recorded.reported && facts.report().is_none() => WantedRoles::WithoutGpus,
        true if engines != job.spec.inference.replicas => WantedRoles::EverythingWith { engines },
        true => WantedRoles::Everything,
    }
}

/// The number of engines in the spec, or the current larger number until the coordinator has the
/// spec's generation: it must stop routing to an engine before the engine is stopped.
fn num_engines(job: &Job, facts: &Facts) -> i32 {
    let requested = job.spec.inference.replicas;
    let is_current = |generation| generation == Some(facts.generation);
    if facts.report().is_none_or(|report| is_current(report.generation)) {
        requested
    } else {
        requested.max(facts.roles.inference.wanted)
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::{CoordinatorStatus, RewardOutage};

    use super::super::test_support::{at, facts, outcome};
    use super::super::{Obstacle, RoleCounts, Silence, decide};
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn a_run_is_starting_until_its_coordinator_reports_that_it_runs() {
        for (phase, expected) in [
            (None, Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Starting), Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Restarting), Some(Decision::Start(Wait::Restarting))),
            (Some(Phase::Drained), Some(Decision::Start(Wait::Starting))),
            (Some(Phase::Running), None),
        ] {
            let mut facts = facts();
            facts.coordinator =
                phase.and_then(|phase| Some(CoordinatorStatus { phase, ..facts.coordinator? }));
            assert_eq!(starting(&facts), expected, "{phase:?}");
        }
    }

    #[test]
    fn an_obstacle_stalls_a_job_only_before_its_start() {
        let names = ["Service sums-trainer".to_owned(), "ConfigMap sums-run".to_owned()];
        let mut facts = facts();
        facts.obstacle = Obstacle::foreign_objects(&names);
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Run);
        facts.recorded.started = false;
        let message = "the job needs these names, and other owners have objects with them: \
            Service sums-trainer, ConfigMap sums-run; rename the job or delete the objects";
        let expected = Decision::Stall { reason: "ForeignObject", message: message.to_owned() };
        assert_eq!(decide(&validated(), &facts, at(0)), expected);
    }

    #[test]
    fn a_run_waits_for_a_verifier_that_is_down() {
        let mut facts = facts();
        let outage = RewardOutage {
            reward: "judge (http http://judge/)".to_owned(),
            seconds: 3,
            cause: "connection refused".to_owned(),
        };
        facts.coordinator = facts
            .coordinator
            .map(|report| CoordinatorStatus { reward_outage: Some(outage), ..report });
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Start(Wait::Reward));
    }

    #[test]
    fn a_run_whose_storage_takes_no_writes_waits_for_it() {
        let mut facts = facts();
        let with = |report, phase| CoordinatorStatus {
            phase,
            journal_failure: Some("database or disk is full".to_owned()),
            ..report
        };
        facts.coordinator = facts.coordinator.map(|report| with(report, Phase::Restarting));
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Start(Wait::Storage));
        // A coordinator that cannot open the run acts under no epoch.
        facts.coordinator = Some(with(CoordinatorStatus::default(), Phase::Starting));
        facts.recorded.reported = false;
        let decision = decide(&validated(), &facts, at(0));
        assert_eq!(decision, Decision::Start(Wait::Storage));
        assert_eq!(wanted_roles(&validated(), &facts, &decision), WantedRoles::WithoutGpus);
    }

    #[test]
    fn a_coordinator_without_an_answer_for_30_s_is_unresponsive() {
        let mut facts = facts();
        let silence = Silence { since: at(0), error: "connection refused".to_owned(), restarts: 0 };
        facts.silence = Some(silence);
        assert_eq!(decide(&validated(), &facts, at(29)), Decision::Run);
        let unresponsive = Decision::Start(Wait::Unresponsive);
        assert_eq!(decide(&validated(), &facts, at(30)), unresponsive);
    }

    #[test]
    fn evaluations_after_the_last_step_make_no_progress_without_an_engine_for_them() {
        let mut facts = facts();
        facts.recorded.progress = Some((10, at(0)));
        let last = |report| CoordinatorStatus { step: 10, pending_evaluations: Some(1), ..report };
        facts.coordinator = facts.coordinator.map(last);
        let late = at(validated().spec.failure_policy.hang_timeout_seconds.into());
        assert_eq!(decide(&validated(), &facts, late), Decision::Start(Wait::NoProgress));
        facts.roles.evaluation = RoleCounts { wanted: 1, existing: 1, ready: 1 };
        assert_eq!(decide(&validated(), &facts, late), Decision::Run);
    }

    #[test]
    fn a_report_under_another_epoch_is_ignored() {
        let mut facts = facts();
        facts.epoch.number = 4;
        assert_eq!(starting(&facts), Some(Decision::Start(Wait::Starting)));
    }

    #[test]
    fn a_training_run_keeps_running_without_an_engine() {
        let mut facts = facts();
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Run);
        facts.roles.inference = RoleCounts { wanted: 2, existing: 1, ready: 1 };
        assert_eq!(decide(&validated(), &facts, at(0)), Decision::Run);
    }

    #[test]
    fn roles_with_gpus_start_after_the_first_report() {
        let (job, mut new, start) = (validated(), facts(), Decision::Start(Wait::Starting));
        let wanted = |job: &Job, facts: &Facts, decision| wanted_roles(job, facts, decision);
        new.recorded.reported = false;
        assert_eq!(wanted(&job, &new, &start), WantedRoles::Everything, "it reports now");
        new.coordinator = None;
        assert_eq!(wanted(&job, &new, &start), WantedRoles::WithoutGpus);
        let finished = Decision::Finished(outcome());
        assert_eq!(wanted(&job, &new, &finished), WantedRoles::Nothing);
        new.recorded.reported = true;
        let case = "a missing coordinator does not stop the engines";
        assert_eq!(wanted(&job, &new, &start), WantedRoles::Everything, "{case}");
        let (mut job, running) = (job, facts());
        job.spec.inference.replicas = 1;
        let case = "the coordinator has the generation";
        assert_eq!(wanted(&job, &running, &Decision::Run), WantedRoles::Everything, "{case}");
        let outdated = Facts { generation: 5, ..running };
        let expected = WantedRoles::EverythingWith { engines: 2 };
        assert_eq!(wanted(&job, &outdated, &Decision::Run), expected);
    }

    #[test]
    fn engines_are_added_at_once_and_removed_after_the_coordinator_has_the_generation() {
        for (case, requested, current, generation, expected) in [
            ("unchanged", 2, 2, Some(4), 2),
            ("scaled up", 3, 2, Some(3), 3),
            ("scaled down, outdated coordinator", 1, 2, Some(3), 2),
            ("scaled down, new coordinator", 1, 2, None, 2),
            ("scaled down, current coordinator", 1, 2, Some(4), 1),
        ] {
            let (mut job, mut facts) = (validated(), facts());
            job.spec.inference.replicas = requested;
            facts.roles.inference =
                RoleCounts { wanted: current, existing: current, ready: current };
            facts.coordinator.as_mut().unwrap().generation = generation;
            assert_eq!(num_engines(&job, &facts), expected, "{case}");
            facts.coordinator = None;
            assert_eq!(num_engines(&job, &facts), requested, "{case}, no coordinator");
        }
    }
}
