//! Message parts of the status: missing pods and their causes, and the length limit.

use rljob_crds::names::INCIDENT_VANISHED;
use rljob_crds::{EnginePurpose, RLJobSpec};
use rljob_protocol::status::{Activity, CoordinatorStatus, RewardFailure, RewardOutage};

use crate::decide::{Facts, Silence, num_verifiers};
use crate::desired::Role;
use crate::validate::{Job, warnings};

/// Longest message that is copied into the status, in characters.
const MESSAGE_LIMIT: usize = 4096;

/// Cause of the wait of a starting job, in the order of its start.
pub(super) fn waits_for(job: &Job, facts: &Facts) -> String {
    let download = facts.report().and_then(|report| report.download.as_ref());
    if let Some(download) = download {
        // Without bytes, which would change the status at every observation.
        let repository = &download.repository;
        return format!("downloading the Hugging Face repository {repository}{}", cause(facts));
    }
    let wait = match (missing_pods(job, facts), facts.report()) {
        (Some(missing), _) => format!("waiting for {missing}"),
        (None, None) => "all pods are ready; the coordinator has not reported yet".to_owned(),
        (None, Some(_)) => format!(
            "all pods are ready; the coordinator waits for {}{}",
            processes(job),
            unsuitable_engine(facts)
        ),
    };
    wait + &export_of_model(job, facts)
}

/// The processes that register with the coordinator.
fn processes(job: &Job) -> &'static str {
    let has_engines = job.spec.engine_sets().any(|set| set.engines.replicas > 0);
    match (job.spec.algorithm.has_learners(), has_engines) {
        (true, true) => "learners and engines",
        (true, false) => "learners",
        (false, _) => "engines",
    }
}

/// The export that a run which has not trained needs; whether it is complete is unknown.
fn export_of_model(job: &Job, facts: &Facts) -> String {
    let source = job.spec.model.rljob.as_ref();
    source
        .filter(|_| facts.recorded.training_since.is_none())
        .map(|source| {
            format!("; the model is the export of RLJob {}, which must be complete", source.name)
        })
        .unwrap_or_default()
}

/// The first engine that gets no requests and no weights, and why.
pub(super) fn unsuitable_engine(facts: &Facts) -> String {
    let mut engines = facts.report().into_iter().flat_map(CoordinatorStatus::all_engines);
    let unsuitable = engines.find_map(|engine| Some((engine, engine.unsuitable.as_ref()?)));
    unsuitable
        .map(|(engine, cause)| format!("; {} is not used: {cause}", engine.name))
        .unwrap_or_default()
}

/// Why the run's storage fails the coordinator's writes.
pub(super) fn storage_failure(facts: &Facts) -> String {
    let failure = facts.storage_report().and_then(|report| report.journal_failure.as_deref());
    failure.map(|cause| format!("the coordinator cannot write: {cause}")).unwrap_or_default()
}

/// Trackers that do not take the metrics or traces of the run, and why.
pub(super) fn tracker_failure(facts: &Facts) -> Option<String> {
    let failure = facts.report()?.tracker_failure.as_deref()?;
    Some(clip(&format!("{failure}; the run continues, and what is missing is sent later")))
}

/// The verifier, environment or tool that is down, and why.
pub(super) fn reward_outage(facts: &Facts) -> String {
    let Some(outage) = facts.report().and_then(|report| report.reward_outage.as_ref()) else {
        return String::new();
    };
    outage_text(outage)
}

/// What samples wait for. Without the duration, which would change the status at every observation.
pub fn outage_text(outage: &RewardOutage) -> String {
    format!("sampling waits for {}: {}", outage.reward, outage.cause)
}

/// The first failed try of a reward.
pub fn failure_text(failure: &RewardFailure) -> String {
    let RewardFailure { reward, cause, .. } = failure;
    format!("{reward} failed for a completion: {cause}")
}

/// Since when no step was completed, and the pods that are missing.
pub(super) fn no_progress(job: &Job, facts: &Facts) -> String {
    let Some((step, since)) = facts.recorded.progress else { return String::new() };
    let missing = missing_pods(job, facts).map(|missing| format!("; without {missing}"));
    let missing = missing.unwrap_or_default();
    let activity = match facts.report().and_then(|report| report.activity) {
        Some(Activity::Groups) => group_activity(job),
        Some(of_learners) => activity(of_learners).to_owned(),
        None => String::new(),
    };
    format!("no step has been completed since {since:.0}, after step {step}{activity}{missing}")
}

/// What the learners wait for while a group has not inferred their batch.
fn group_activity(job: &Job) -> String {
    let name = job.spec.frozen_group().map_or("", |group| group.name.as_str());
    format!("; the learners wait for the log-probabilities of group {name} of trainer.groups")
}

/// What the learners do or wait for. Without the duration, see [`outage_text`].
fn activity(activity: Activity) -> &'static str {
    match activity {
        Activity::Training => "; the learners train",
        Activity::Validation => "; the learners measure the loss of the evaluation data",
        Activity::WeightSync => "; the weights are sent to the engines",
        Activity::Checkpoint => "; a checkpoint is written",
        Activity::Export => "; the model is exported",
        Activity::Rollouts => "; the learners wait for samples",
        Activity::Evaluation => "; the learners wait for an evaluation",
        Activity::Data => "; the learners wait for data",
        Activity::Exit => "; the learners exit",
        Activity::Groups => "; the learners wait for groups of trainer.groups",
        Activity::Other => "",
    }
}

/// Since when and why the coordinator does not answer.
pub(super) fn silence(facts: &Facts) -> String {
    let Some(Silence { since, error, restarts }) = &facts.silence else { return String::new() };
    let restarts = match restarts {
        0 => String::new(),
        1 => "; its container restarted once since".to_owned(),
        _ => format!("; its container restarted {restarts} times since"),
    };
    format!("the coordinator has not answered since {since:.0}{restarts}: {error}")
}

/// The pods that are not ready, by role, and the first cause.
pub(super) fn missing_pods(job: &Job, facts: &Facts) -> Option<String> {
    let engines =
        if job.spec.inference.pods_per_engine() > 1 { "engines" } else { "inference pods" };
    let of = |purpose| job.spec.num_engines(purpose);
    let roles = [
        ("coordinator pods", facts.roles.coordinator, 1),
        ("trainer pods", facts.roles.trainer, job.spec.trainers()),
        ("pods of trainer.groups", facts.roles.group, job.spec.group_replicas()),
        (engines, facts.roles.inference, job.spec.inference.replicas),
        ("evaluation engines", facts.roles.evaluation, of(EnginePurpose::Evaluation)),
        ("reward engines", facts.roles.reward, of(EnginePurpose::Reward)),
        ("teacher engines", facts.roles.teacher, of(EnginePurpose::Teacher)),
        ("verifier pods", facts.roles.verifier, num_verifiers(job, facts)),
    ];
    let missing: Vec<String> = roles
        .iter()
        .filter(|(_, counts, wanted)| counts.ready < *wanted)
        .map(|(pods, counts, wanted)| {
            format!("{} of {wanted} {pods}", wanted.saturating_sub(counts.ready))
        })
        .collect();
    (!missing.is_empty()).then(|| format!("{}{}", missing.join(", "), cause(facts)))
}

/// What keeps pods from running, or an incident of an existing pod.
fn cause(facts: &Facts) -> String {
    let incident = facts
        .incidents
        .iter()
        .find(|incident| incident.reason != INCIDENT_VANISHED)
        .map(|incident| &incident.message);
    facts
        .waiting
        .first()
        .map(|waiting| &waiting.message)
        .or(incident)
        .map(|cause| format!("; {cause}"))
        .unwrap_or_default()
}

/// What keeps the pods of a role from running.
pub(super) fn pod_cause(job: &Job, facts: &Facts, role: Role) -> String {
    let name = format!("{}-{}", job.name, role.as_str());
    let waiting = facts.waiting.iter().find(|waiting| waiting.name.starts_with(&name));
    waiting.map(|waiting| format!("; {}", waiting.message)).unwrap_or_default()
}

/// The last part of a message that exceeds the limit: the end of a log has the cause.
pub(super) fn clip(message: &str) -> String {
    let length = message.chars().count();
    message.chars().skip(length.saturating_sub(MESSAGE_LIMIT)).collect()
}

/// Settings of the spec that have no effect, if any.
pub(super) fn without_effect(spec: &RLJobSpec, facts: &Facts) -> Option<String> {
    let mut settings: Vec<_> = warnings(spec).iter().map(ToString::to_string).collect();
    settings.extend(facts.queue.iter().flat_map(|queue| queue.ignored.clone()));
    (!settings.is_empty()).then(|| clip(&settings.join("; ")))
}
