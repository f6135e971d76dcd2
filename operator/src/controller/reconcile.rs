//! One pass over a job.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use rljob_crds::RLJob;
use rljob_crds::names::MANAGED_BY;
use rljob_crds::status::RLJobStatus;

use super::subject::Subject;
use super::{desired, requeue};
use crate::context::Context;
use crate::decide::{Decision, decide, is_expired};
use crate::execute::{self, CoordinatorAction, ExecuteError, Executed, execute};
use crate::observe::{Lookup, Observed, observe, observe_queue};
use crate::status;

/// A failed pass.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("failed to observe the job's objects")]
    Observe(#[source] Box<kube::Error>),
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

impl ReconcileError {
    /// The step that failed, as a metric's label.
    fn variant(&self) -> &'static str {
        match self {
            Self::Observe(_) => "observe",
            Self::Execute(error) => error.variant(),
        }
    }
}

/// Runs a pass once the cache is complete, and measures it.
pub(super) async fn reconcile_measured(
    job: Arc<RLJob>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    context.cache.wait_until_listed().await;
    let started = Instant::now();
    let result = Box::pin(reconcile(&job, &context)).await;
    let variant = result.as_ref().err().map(ReconcileError::variant);
    context.metrics.reconciled(started.elapsed(), variant);
    if result.is_ok() {
        context.memory.failures.clear(&job.uid().unwrap_or_default());
    }
    result
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the controller calls")]
pub(super) fn error_policy(
    job: Arc<RLJob>,
    error: &ReconcileError,
    context: Arc<Context>,
) -> Action {
    let name = ObjectRef::from_obj(job.as_ref());
    if matches!(error, ReconcileError::Execute(ExecuteError::Conflict(_))) {
        tracing::debug!(job = %name, %error, "conflict; reconciling again");
        return requeue::after_conflict();
    }
    let delay = context.memory.failures.next_delay(&job.uid().unwrap_or_default());
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(job = %name, %error, cause, delay_s = delay.as_secs(), "reconcile failed");
    Action::requeue(delay)
}

async fn reconcile(object: &RLJob, context: &Context) -> Result<Action, ReconcileError> {
    let uid = object.uid().unwrap_or_default();
    if object.spec.managed_by != MANAGED_BY || object.metadata.deletion_timestamp.is_some() {
        execute::direct_coordinator(context, object, CoordinatorAction::Forget);
        return Ok(Action::await_change());
    }
    if context.memory.status_writes.is_newer(&uid, object.metadata.resource_version.as_deref()) {
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let old = object.status.clone().unwrap_or_default();
    // validate (no client)
    let mut job = Subject::new(object, context.policy);
    // observe (client: reads)
    let observed = observe_all(context, &mut job, &old, now)
        .await
        .map_err(|error| ReconcileError::Observe(Box::new(error)))?;
    // decide (no client)
    let decision = decide(&job, &observed.facts, now);
    // status (no client)
    let update = status::next(&job, &old, &observed.facts, &decision, observed.last_write, now);
    let due = requeue::Due::new(&job, &update, &decision, &observed, now);
    // desired (no client)
    let (settings, key) = (&context.settings, &context.token_key);
    let actions = desired::actions(&job, &observed, &decision, update.status, settings, key, now);
    let is_new_status = actions.status != old;
    // execute (client: writes)
    let executed = execute(context, object, &observed, actions, now).await?;
    if is_new_status || executed.children > 0 {
        log(object, &decision, &executed);
    }
    // requeue (no client)
    Ok(due.action(&decision, executed.rejection))
}

/// Observes the job's queue, limits the job to its quota, and observes its objects.
async fn observe_all(
    context: &Context,
    job: &mut Subject,
    old: &RLJobStatus,
    now: Timestamp,
) -> kube::Result<Observed> {
    let recorded = status::recorded(old);
    let is_raised = recorded.total_steps.is_some_and(|total| job.spec.training.steps > total);
    let is_active = recorded.outcome.is_none() || is_raised;
    let queue = observe_queue(context, job, is_active).await?;
    job.admit(&queue);
    observe(context, job, job.invalid(), queue, lookup(job, old, now), old, now).await
}

/// Names are looked up only if children may be created.
fn lookup(job: &Subject, old: &RLJobStatus, now: Timestamp) -> Lookup {
    match job {
        Subject::Valid(job) if !is_expired(job, &status::recorded(old), now) => {
            Lookup::UnknownNames
        }
        Subject::Valid(_) | Subject::Invalid(..) => Lookup::CacheOnly,
    }
}

fn log(object: &RLJob, decision: &Decision, executed: &Executed) {
    let job = ObjectRef::from_obj(object);
    tracing::info!(%job, ?decision, applied = executed.children, "reconciled");
}
