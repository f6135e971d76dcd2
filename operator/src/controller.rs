//! The controller: `observe → validate → decide → status → desired → apply`, once for every change
//! of a job, its children or its coordinator.
//!
//! Status is written once a pass, and before anything is made or taken away; the write names the
//! version of the object that was read, so that a pass over a stale object changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use rljob_crds::RLJob;
use rljob_crds::names::{MANAGED_BY, REASON_FOREIGN_OBJECT, REASON_INVALID_SPEC};
use rljob_crds::status::RLJobStatus;

use crate::apply::{Applied, ApplyError, Target};
use crate::cache::Cache;
use crate::children::children;
use crate::decide::{
    self, Decision, Facts, Recorded, assign_epoch, decide, desired_for_coordinator,
};
use crate::desired::tokens::TokenKey;
use crate::desired::{Settings, Tokens, build};
use crate::metrics::Metrics;
use crate::observe::{Observed, observe};
use crate::pods::{self, LastSeen, Plan};
use crate::poll::{Order, Pollers};
use crate::remove::remove;
use crate::status;
use crate::tend::tend;
use crate::validate::{ValidatedJob, validate};

mod error;
mod policy;
mod run;

pub use error::ReconcileError;
pub use policy::{Failures, Rejections, Written};
pub use run::{new, run};

/// A pass that nothing triggered, as a safety net.
const RESYNC: Duration = Duration::from_secs(300);
/// Time after which a job that does not get further by itself is looked at again.
const STALLED_RESYNC: Duration = Duration::from_secs(60);
/// Time in which a coordinator that is asked for the first time has answered, or has been given up
/// for now.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// Time that a pod may wait for its volumes before what it mounts is applied again.
const MOUNT_PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// Longest note of an event, in bytes.
const NOTE_LIMIT: usize = 1000;

/// What every pass needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The namespace that is looked after; all, if none.
    pub namespace: Option<String>,
    /// What lives.
    pub cache: Arc<Cache>,
    /// What was applied.
    pub applied: Applied,
    /// What statuses were written.
    pub written: Written,
    /// The operator's own part in what is rendered.
    pub settings: Settings,
    /// What tokens are derived from.
    pub token_key: TokenKey,
    /// The tasks that talk to coordinators.
    pub pollers: Pollers,
    /// In whose name events are published.
    pub reporter: Reporter,
    /// Numbers about the operator itself.
    pub metrics: Metrics,
    /// Failures in a row, by job.
    pub failures: Failures,
    /// Children that the API server refused, by job.
    pub rejections: Rejections,
    /// Pods of the pass before, by job.
    pub last_seen: LastSeen,
}

async fn reconcile_measured(
    job: Arc<RLJob>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    context.cache.wait_until_listed().await;
    let started = Instant::now();
    let result = Box::pin(reconcile(&job, &context)).await;
    context
        .metrics
        .reconciled(started.elapsed(), result.as_ref().err().map(ReconcileError::variant));
    if result.is_ok() {
        context.failures.clear(&job.uid().unwrap_or_default());
    }
    result
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the controller calls")]
fn error_policy(job: Arc<RLJob>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let name = ObjectRef::from_obj(job.as_ref());
    if matches!(error, ReconcileError::Conflict(_)) {
        tracing::debug!(job = %name, %error, "trying again");
        return Action::requeue(policy::CONFLICT_DELAY);
    }
    let delay = context.failures.next_delay(&job.uid().unwrap_or_default());
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(job = %name, %error, cause, delay_s = delay.as_secs(), "the pass failed");
    Action::requeue(delay)
}

async fn reconcile(object: &RLJob, context: &Context) -> Result<Action, ReconcileError> {
    let uid = object.uid().unwrap_or_default();
    if object.spec.managed_by != MANAGED_BY || object.metadata.deletion_timestamp.is_some() {
        context.pollers.forget(&uid);
        return Ok(Action::await_change());
    }
    if context.written.is_newer(&uid, object.metadata.resource_version.as_deref()) {
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let old = object.status.clone().unwrap_or_default();
    // validate (no client); what runs under a spec that has become invalid is left alone, but for
    // being suspended
    let job = match validate(object) {
        Ok(job) => job,
        Err(_) if status::is_to_release(object.spec.suspend, &old) => {
            ValidatedJob::as_it_is(object)
        }
        Err(invalid) => {
            return stall(object, &old, REASON_INVALID_SPEC, &invalid.to_string(), context, now)
                .await;
        }
    };
    // observe (client only for names that nothing is known of, and only if something may be made)
    let outlived = decide::removal(&job, &status::recorded(&old)).is_some_and(|due| now >= due);
    let asks = (!outlived).then_some(&context.client);
    let observed = observe(&context.cache, asks, &job)
        .await
        .map_err(|error| ReconcileError::Observe(Box::new(error)))?;
    if !observed.foreign.is_empty() {
        let message = format!(
            "these objects have names that the job needs and belong to somebody else; rename the job or remove them: {}",
            observed.foreign.join(", ")
        );
        return stall(object, &old, REASON_FOREIGN_OBJECT, &message, context, now).await;
    }
    // decide, status (no client)
    let mut facts = observed.facts(&job, &old, |identity| context.pollers.report(&uid, identity));
    let recorded_epoch = facts.recorded.epoch.clone();
    let epoch = assign_epoch(
        &facts.recorded.epoch,
        facts.coordinator_identity.as_deref(),
        facts.coordinator.as_ref().and_then(|status| status.epoch),
    );
    facts.recorded.epoch = epoch.clone();
    let pods = observed.pod_facts();
    let plan = pods::plan(&pods, facts.report().map_or(&[], |report| &report.engines), now);
    facts.incidents = pods::incidents(
        &pods,
        &plan,
        &context.last_seen.gone(&uid, &pods, |role, ordinal| observed.wants(role, ordinal)),
    );
    (facts.exit, facts.exits) = (pods::exit(&pods), pods::exits(&pods));
    let decision = decide(&job, &facts, now);
    let order = order(&job, &facts, &observed, &decision, context);
    if let Some(order) = order.filter(|order| {
        epoch == recorded_epoch
            && facts.recorded.reported
            && !context.pollers.has_asked(&uid, &order.identity)
    }) {
        // A new operator asks before it says anything of a run that makes steps: until then, what
        // is recorded holds.
        context.pollers.order(&uid, ObjectRef::from_obj(object), order);
        return Ok(Action::requeue(FIRST_ANSWER));
    }
    let computed = status::compute(&job, &old, &facts, &decision, &epoch, now);
    let runs = matches!(decision, Decision::Start(_) | Decision::Run);
    let (mut new, unsettled) =
        status::settle(&old, computed, context.written.at(&uid).filter(|_| runs), now);
    if let Some(rejection) = context.rejections.of(&uid).filter(|_| decision.keeps_running()) {
        new = status::rejected(&old, new, &rejection, now);
    }
    // The record comes before the deed (client).
    let written = write_status(object, &old, new, context).await?;
    context.last_seen.replace(&uid, &pods);
    tend(&context.client, &job.namespace, &plan, now)
        .await
        .map_err(|error| ReconcileError::Tend(Box::new(error)))?;
    act(
        object,
        &job,
        &Seen { old, written, unsettled, facts, observed, decision, plan, outlived, now },
        context,
    )
    .await
}

/// What a pass has found and recorded.
struct Seen {
    old: RLJobStatus,
    written: RLJobStatus,
    /// When what has not been written is due.
    unsettled: Option<Timestamp>,
    facts: Facts,
    observed: Observed,
    decision: Decision,
    plan: Plan,
    /// Whether a finished job's children have outlived their time.
    outlived: bool,
    now: Timestamp,
}

/// Does what was recorded: desired (no client), apply or remove (client), tell the coordinator.
async fn act(
    object: &RLJob,
    job: &ValidatedJob,
    seen: &Seen,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let tokens = Tokens::derive(&context.token_key, &job.uid);
    let wanted = seen.decision.wanted(job, &seen.facts);
    let children =
        children(&build(job, wanted, &context.settings, &tokens, &seen.observed.pinned(wanted)));
    let target = Target {
        client: &context.client,
        cache: &context.cache,
        applied: &context.applied,
        namespace: &job.namespace,
        uid: &job.uid,
    };
    if seen.outlived {
        context.pollers.forget(&job.uid);
        if seen.observed.has_children() {
            remove(&target, &children, &seen.observed).await?;
        }
        return Ok(Action::await_change());
    }
    let unmounted = seen.observed.unmounted_since();
    let secret_is_missed =
        unmounted.is_some_and(|since| seen.now.duration_since(since) >= MOUNT_PATIENCE);
    let (applied, rejection) = match target.apply(&children, &seen.observed, secret_is_missed).await
    {
        Ok(applied) => (applied, None),
        Err(error @ ApplyError::Rejected { .. }) => (0, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    if applied > 0 || seen.written != seen.old {
        let (job, attempt, epoch) =
            (ObjectRef::from_obj(object), seen.written.attempt, seen.written.epoch);
        tracing::info!(%job, decision = ?seen.decision, attempt, epoch, applied, "reconciled");
    }
    tell_coordinator(object, job, seen, context);
    let is_news = context.rejections.replace(&job.uid, rejection.as_deref(), seen.now);
    if is_news {
        return Ok(Action::requeue(Duration::ZERO));
    }
    let due = next_pass(
        job,
        &status::recorded(&seen.written),
        &seen.decision,
        rejection.is_some(),
        seen.now,
    );
    let settles = seen.unsettled.map(|due| until(due, seen.now));
    let waits =
        [seen.plan.wait(seen.now), settles, unmounted.map(|_| MOUNT_PATIENCE.unsigned_abs())];
    Ok(Action::requeue(waits.into_iter().flatten().fold(due, Duration::min)))
}

/// Hands the level to the task that talks to the coordinator; only now, since the epoch is
/// recorded.
fn tell_coordinator(object: &RLJob, job: &ValidatedJob, seen: &Seen, context: &Context) {
    if !seen.decision.keeps_running() {
        context.pollers.forget(&job.uid);
    } else if let Some(order) = order(job, &seen.facts, &seen.observed, &seen.decision, context) {
        context.pollers.order(&job.uid, ObjectRef::from_obj(object), order);
    }
}

/// What the coordinator is to be told; none while it is not to be told anything, or cannot be.
fn order(
    job: &ValidatedJob,
    facts: &Facts,
    observed: &Observed,
    decision: &Decision,
    context: &Context,
) -> Option<Order> {
    let desired = desired_for_coordinator(job, facts).filter(|_| decision.keeps_running())?;
    let (identity, url) = observed.coordinator()?;
    let token = Tokens::derive(&context.token_key, &job.uid).operator;
    Some(Order { identity, url: url?, token, desired })
}

/// When time alone changes what is to be done, or else as a safety net.
fn next_pass(
    job: &ValidatedJob,
    recorded: &Recorded,
    decision: &Decision,
    stalled: bool,
    now: Timestamp,
) -> Duration {
    let due = match decision {
        Decision::Drain { deadline } => Some(*deadline),
        Decision::Start(_) | Decision::Run => decide::deadline(job, recorded),
        Decision::Finish(_) | Decision::Finished(_) => decide::removal(job, recorded),
        Decision::Release | Decision::Suspended => None,
    };
    let longest = if stalled { STALLED_RESYNC } else { RESYNC };
    due.map_or(longest, |due| until(due, now).min(longest))
}

/// The time until then; none if that has passed.
fn until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or_default()
}

/// Writes the status of a job that does not get further by itself.
async fn stall(
    object: &RLJob,
    old: &RLJobStatus,
    reason: &str,
    message: &str,
    context: &Context,
    now: Timestamp,
) -> Result<Action, ReconcileError> {
    let new =
        status::stalled(object.metadata.generation.unwrap_or_default(), old, reason, message, now);
    write_status(object, old, new, context).await?;
    Ok(Action::requeue(STALLED_RESYNC))
}

/// Writes the status if it differs, then publishes the events that follow from it. Gives what is
/// recorded now.
async fn write_status(
    object: &RLJob,
    old: &RLJobStatus,
    new: RLJobStatus,
    context: &Context,
) -> Result<RLJobStatus, ReconcileError> {
    if new == *old {
        return Ok(new);
    }
    let api: Api<RLJob> =
        Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    let mut replacement = object.clone();
    replacement.status = Some(new.clone());
    // The resourceVersion in the object makes this a compare-and-set.
    match api
        .replace_status(
            &object.name_any(),
            &PostParams { field_manager: Some(MANAGED_BY.to_owned()), ..PostParams::default() },
            &replacement,
        )
        .await
    {
        Ok(made) => context.written.note(
            &object.uid().unwrap_or_default(),
            made.metadata.resource_version.as_deref(),
            Timestamp::now(),
        ),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            return Err(ReconcileError::Conflict(
                "the RLJob changed while its status was being written".to_owned(),
            ));
        }
        Err(error) => return Err(ReconcileError::WriteStatus(Box::new(error))),
    }
    context.metrics.status_written(old, &new, Timestamp::now());
    for event in status::events(old, &new) {
        publish(object, event, context).await;
    }
    Ok(new)
}

/// Publishes an event. One that is lost is only logged: the status says the same.
async fn publish(object: &RLJob, event: status::StatusEvent, context: &Context) {
    let type_ = if event.warning { EventType::Warning } else { EventType::Normal };
    let note = event.note.chars().scan(0, |bytes, c| {
        *bytes += c.len_utf8();
        (*bytes <= NOTE_LIMIT).then_some(c)
    });
    let note = Some(note.collect());
    let (kind, namespace, uid) = (Some("Pod".to_owned()), object.namespace(), event.pod_uid);
    let secondary = event.pod.map(|name| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind,
        name: Some(name),
        namespace,
        uid,
        ..ObjectReference::default()
    });
    let event =
        Event { type_, reason: event.reason, note, action: "Reconcile".to_owned(), secondary };
    // One that is kept would count repeated events up, with the words of the first, and hold those
    // of six minutes.
    let recorder = Recorder::new(context.client.clone(), context.reporter.clone());
    if let Err(error) = recorder.publish(&event, &object.object_ref(&())).await {
        tracing::warn!(%error, "failed to publish an event");
    }
}
