//! Conditions, by the truth table in the parent module. An unchanged condition keeps its transition
//! time.

mod list;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rljob_crds::names::{
    CONDITION_CHECKPOINT_AVAILABLE, CONDITION_EVALUATION_READY, CONDITION_INFERENCE_READY,
    CONDITION_METRICS_TRACKED, CONDITION_REWARD_READY, CONDITION_SETTINGS_EFFECTIVE,
    CONDITION_SUSPENDED, CONDITION_TEACHER_READY, CONDITION_TRAINER_READY,
    CONDITION_VERIFIERS_READY, CONDITION_WEIGHTS_SYNCED, REASON_AWAITING_DELETION,
    REASON_CHECKPOINT_COMPLETE, REASON_COORDINATOR_UNRESPONSIVE, REASON_DRAINING,
    REASON_NO_CHECKPOINT, REASON_NO_PROGRESS, REASON_NOT_SUSPENDED, REASON_NOT_WANTED,
    REASON_OVERDUE, REASON_PODS_NOT_READY, REASON_PODS_READY, REASON_QUEUED, REASON_RELEASING,
    REASON_RESTARTING, REASON_REWARD_UNAVAILABLE, REASON_RUNNING, REASON_STARTING,
    REASON_STORAGE_UNAVAILABLE, REASON_SUSPENDED, REASON_SYNCED, REASON_SYNCING,
    REASON_TRACKER_UNAVAILABLE, REASON_UNKNOWN, REASON_WITHOUT_EFFECT,
};
use rljob_crds::roles::InferenceSpec;
use rljob_crds::status::RLJobStatus;
use rljob_protocol::status::EngineCondition;

use self::list::{Conditions, RunState, Truth};
use super::text::{
    clip, missing_pods, no_progress, pod_cause, reward_outage, silence, storage_failure,
    tracker_failure, unsuitable_engine, waits_for, without_effect,
};
use crate::decide::{Decision, Facts, Wait, num_verifiers};
use crate::desired::Role;
use crate::validate::Job;

/// Time without a synced engine after which `WeightsSynced` becomes False.
const SYNC_OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Conditions after a decision.
pub(super) fn compute(
    job: &Job,
    old: &RLJobStatus,
    facts: &Facts,
    decision: &Decision,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = Conditions::new(old, job.generation, now);
    let (state, reason, message) = summary(job, facts, decision);
    conditions.set_summary(state, reason, &message);
    set_suspended(&mut conditions, decision);
    let keeps_running = decision.keeps_running();
    set_roles(&mut conditions, job, facts, keeps_running);
    let engines = if keeps_running { job.spec.inference.replicas } else { 0 };
    set_weights_synced(&mut conditions, facts, engines);
    set_checkpoint(&mut conditions, job, old, facts);
    if let Some(settings) = without_effect(&job.spec, facts) {
        conditions.set(CONDITION_SETTINGS_EFFECTIVE, false, REASON_WITHOUT_EFFECT, settings);
    }
    if let Some(failure) = tracker_failure(facts) {
        conditions.set(CONDITION_METRICS_TRACKED, false, REASON_TRACKER_UNAVAILABLE, failure);
    }
    conditions.list
}

/// Conditions of a job whose objects cannot be created or changed. `parts` has the conditions of
/// its parts.
pub(super) fn stalled(
    generation: i64,
    old: &RLJobStatus,
    parts: &RLJobStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = Conditions::new(old, generation, now);
    let state = match reason {
        REASON_AWAITING_DELETION => RunState::Progressing,
        _ => RunState::Stalled,
    };
    conditions.set_summary(state, reason, message);
    if old.completion_time.is_some() {
        conditions.keep_outcome();
    }
    for type_ in [
        CONDITION_SUSPENDED,
        CONDITION_INFERENCE_READY,
        CONDITION_TRAINER_READY,
        CONDITION_WEIGHTS_SYNCED,
        CONDITION_CHECKPOINT_AVAILABLE,
    ] {
        match parts.conditions.iter().find(|condition| condition.type_ == type_) {
            Some(part) => conditions
                .list
                .push(Condition { observed_generation: Some(generation), ..part.clone() }),
            None => conditions.set(type_, Truth::Unknown, REASON_UNKNOWN, "not observed yet"),
        }
    }
    conditions.add_missing(&parts.conditions);
    conditions.list
}

/// Why a run waits, as reason and message; none while it starts, trains or drains.
pub fn wait(job: &Job, facts: &Facts, decision: &Decision) -> Option<(String, String)> {
    let storage = Decision::Start(Wait::Storage);
    let decision = match decision {
        Decision::Start(Wait::Storage | Wait::Reward | Wait::NoProgress | Wait::Unresponsive) => {
            decision
        }
        // A checkpoint cannot be written either.
        Decision::Drain { .. } if !storage_failure(facts).is_empty() => &storage,
        _ => return None,
    };
    let (_, reason, message) = summary(job, facts, decision);
    Some((reason.to_owned(), message))
}

/// State, reason and message of the run.
fn summary<'a>(job: &Job, facts: &Facts, decision: &'a Decision) -> (RunState, &'a str, String) {
    match decision {
        Decision::Start(Wait::Starting) | Decision::AskCoordinator => {
            (RunState::Progressing, REASON_STARTING, waits_for(job, facts))
        }
        Decision::Start(Wait::Restarting) => {
            let waits = match missing_pods(job, facts) {
                Some(_) => format!("; {}", waits_for(job, facts)),
                None => String::new(),
            };
            let message = format!("restarting the learners from the newest checkpoint{waits}");
            (RunState::Progressing, REASON_RESTARTING, message)
        }
        Decision::Start(Wait::Storage) => {
            (RunState::Progressing, REASON_STORAGE_UNAVAILABLE, storage_failure(facts))
        }
        Decision::Start(Wait::Reward) => {
            (RunState::Progressing, REASON_REWARD_UNAVAILABLE, reward_outage(facts))
        }
        Decision::Start(Wait::NoProgress) => {
            (RunState::Progressing, REASON_NO_PROGRESS, no_progress(job, facts))
        }
        Decision::Start(Wait::Unresponsive) => {
            (RunState::Progressing, REASON_COORDINATOR_UNRESPONSIVE, silence(facts))
        }
        Decision::Run => {
            let without = missing_pods(job, facts).map(|missing| format!(" without {missing}"));
            let doing = if job.spec.algorithm.has_learners() { "training" } else { "evaluating" };
            let message = format!("{doing}{}", without.unwrap_or_default());
            (RunState::Settled, REASON_RUNNING, message)
        }
        Decision::Drain { deadline } => {
            let cause = facts.hold().filter(|_| !facts.suspend);
            let cause = cause.map(|cause| format!("{cause}; ")).unwrap_or_default();
            let message = format!(
                "{cause}finishing the current step and writing a checkpoint; \
                 the pods are deleted by {deadline:.0} at the latest"
            );
            (RunState::Progressing, REASON_DRAINING, message)
        }
        Decision::Release => {
            (RunState::Progressing, REASON_RELEASING, "deleting the pods".to_owned())
        }
        Decision::Suspended => {
            let message = "suspended; set spec.suspend to false to resume".to_owned();
            (RunState::Settled, REASON_SUSPENDED, message)
        }
        Decision::Queued { message } => (RunState::Progressing, REASON_QUEUED, clip(message)),
        Decision::Finish(outcome) | Decision::Finished(outcome) | Decision::Expired(outcome) => {
            let state = if outcome.succeeded { RunState::Succeeded } else { RunState::Failed };
            (state, &outcome.reason, clip(&outcome.message))
        }
        Decision::Stall { reason, message } => (RunState::Stalled, reason, clip(message)),
    }
}

fn set_suspended(conditions: &mut Conditions<'_>, decision: &Decision) {
    let (is, reason, message) = match decision {
        Decision::Suspended => (true, REASON_SUSPENDED, "no pods are left"),
        Decision::Queued { message } => (true, REASON_QUEUED, message.as_str()),
        Decision::Drain { .. } => (false, REASON_DRAINING, "draining"),
        Decision::Release => (false, REASON_RELEASING, "deleting the pods"),
        Decision::Stall { .. }
        | Decision::AskCoordinator
        | Decision::Start(_)
        | Decision::Run
        | Decision::Finish(_)
        | Decision::Finished(_)
        | Decision::Expired(_) => (false, REASON_NOT_SUSPENDED, "not suspended"),
    };
    conditions.set(CONDITION_SUSPENDED, is, reason, message);
}

/// Conditions of the roles that the job has.
fn set_roles(conditions: &mut Conditions<'_>, job: &Job, facts: &Facts, keeps_running: bool) {
    let (spec, roles) = (&job.spec, facts.roles);
    let engines = |own: &InferenceSpec| {
        (own.replicas, if own.pods_per_engine() > 1 { "engines" } else { "pods" })
    };
    let num_trainers = spec.trainers().saturating_add(spec.group_replicas());
    let trainers = roles.trainer.plus(roles.group);
    let of = |role: Role| role.engines(spec).map(engines);
    let verifiers = spec.verifiers.as_ref().map(|_| (num_verifiers(job, facts), "pods"));
    for (type_, role, counts, wanted) in [
        (CONDITION_INFERENCE_READY, Role::Inference, roles.inference, of(Role::Inference)),
        (CONDITION_TRAINER_READY, Role::Trainer, trainers, Some((num_trainers, "pods"))),
        (CONDITION_EVALUATION_READY, Role::Evaluation, roles.evaluation, of(Role::Evaluation)),
        (CONDITION_REWARD_READY, Role::Reward, roles.reward, of(Role::Reward)),
        (CONDITION_TEACHER_READY, Role::Teacher, roles.teacher, of(Role::Teacher)),
        (CONDITION_VERIFIERS_READY, Role::Verifier, roles.verifier, verifiers),
    ] {
        match wanted {
            None => {}
            Some(_) if !keeps_running => {
                conditions.set(type_, false, REASON_NOT_WANTED, "no pods are wanted");
            }
            Some((0, _)) => {
                conditions.set(type_, true, REASON_NOT_WANTED, "the spec wants no pods");
            }
            Some((wanted, noun)) => {
                let is_ready = counts.ready >= wanted;
                let reason = if is_ready { REASON_PODS_READY } else { REASON_PODS_NOT_READY };
                let cause = if is_ready { String::new() } else { pod_cause(job, facts, role) };
                // Pods beyond the number in the spec are ready until they are deleted.
                let ready = counts.ready.min(wanted);
                let message = format!("{ready} of {wanted} {noun} are ready{cause}");
                conditions.set(type_, is_ready, reason, message);
            }
        }
    }
}

fn set_weights_synced(conditions: &mut Conditions<'_>, facts: &Facts, engines: i32) {
    let type_ = CONDITION_WEIGHTS_SYNCED;
    let is_synced = facts.report().is_some_and(|report| {
        report.engines.iter().any(|engine| engine.state == EngineCondition::Ready)
    });
    let is_overdue = conditions.old(type_).is_some_and(|old| {
        // Before an engine is up, none could hold weights.
        let since = facts.engine_up_since.map(|up| up.max(old.last_transition_time.0));
        let is_old = |since| conditions.now.duration_since(since) > SYNC_OVERDUE;
        old.status == "False" || (old.reason == REASON_SYNCING && since.is_some_and(is_old))
    });
    if engines == 0 {
        conditions.set(type_, Truth::Unknown, REASON_NOT_WANTED, "no engines are wanted");
    } else if is_synced {
        conditions.set(type_, true, REASON_SYNCED, "at least one engine holds the current weights");
    } else if is_overdue {
        let minutes = SYNC_OVERDUE.as_mins();
        let message = format!(
            "no engine has held the current weights for more than {minutes} minutes{}",
            unsuitable_engine(facts)
        );
        conditions.set(type_, false, REASON_OVERDUE, clip(&message));
    } else {
        let message =
            format!("no engine holds the current weights yet{}", unsuitable_engine(facts));
        conditions.set(type_, Truth::Unknown, REASON_SYNCING, message);
    }
}

fn set_checkpoint(conditions: &mut Conditions<'_>, job: &Job, old: &RLJobStatus, facts: &Facts) {
    if !job.spec.algorithm.has_learners() {
        let message = "an evaluation writes no checkpoints";
        conditions.set(CONDITION_CHECKPOINT_AVAILABLE, false, REASON_NOT_WANTED, message);
        return;
    }
    let exists = old.checkpoint.is_some()
        || facts.report().is_some_and(|report| report.checkpoint.is_some());
    let (reason, message) = if exists {
        (REASON_CHECKPOINT_COMPLETE, "a complete checkpoint exists")
    } else {
        (REASON_NO_CHECKPOINT, "no checkpoint has been completed yet")
    };
    conditions.set(CONDITION_CHECKPOINT_AVAILABLE, exists, reason, message);
}
