//! Side effects of a pass, in this order: status and events, pod actions, children, children
//! that the job needs no longer, Workload of Kueue, coordinator.
//!
//! The status is written first, so that every other side effect is recorded before it happens. All
//! requests name the UID and the version of the object that was observed: if it has changed, the
//! next pass decides again.
//!
//! ```text
//!  Actions { status, pods, children, obsolete, workload, coordinator }
//!              │       │       │         │         │        └─▶ PUT /v1/desired, by a task
//!              │       │       │         │         │            ([`crate::poll`])
//!              │       │       │         │         └─▶ PATCH workloads/status, DELETE workloads
//!              │       │       │         └─▶ DELETE
//!              │       │       └─▶ apply, release (replicas 0) or remove
//!              │       └─▶ DELETE pods, PATCH pods/status
//!              └─▶ PUT rljobs/status, POST events
//! ```

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use rljob_crds::RLJob;

use crate::context::Context;
use crate::observe::Observed;
use crate::pods;

mod actions;
mod apply;
mod error;
mod pod_actions;
mod remove;
mod status;
mod workload;

pub use actions::{Actions, ChildAction, CoordinatorAction, Executed, Rejection, Secrets};
use apply::{ApplyError, Target};
pub use error::ExecuteError;
pub use status::write_status;

/// Executes the actions of a pass.
///
/// # Errors
/// The first side effect that fails; later ones are left to the next pass, except that all follow
/// failed actions on pods.
pub async fn execute(
    context: &Context,
    object: &RLJob,
    observed: &Observed,
    actions: Actions,
    now: Timestamp,
) -> Result<Executed, ExecuteError> {
    let Actions { status, pods, children, obsolete, workload, coordinator } = actions;
    let uid = object.uid().unwrap_or_default();
    let namespace = object.namespace().unwrap_or_default();
    write_status(context, object, &status).await?;
    let acted = match pods {
        Some(plan) => {
            context.memory.seen_pods.replace(&uid, pods::stable(&observed.pods));
            pod_actions::act(&context.client, &namespace, &plan, now).await
        }
        None => Ok(()),
    };
    let target = Target {
        client: &context.client,
        cache: &context.cache,
        applied: &context.memory.applied,
        namespace: &namespace,
        uid: &uid,
    };
    let executed = act_on_children(context, &target, observed, children, now).await?;
    remove::remove_named(&target, &obsolete, &observed.children).await?;
    let (name, action) = workload;
    workload::act(&target, &name, observed.queue.child.as_deref(), action).await?;
    direct_coordinator(context, object, coordinator);
    // Children and coordinator do not depend on them.
    acted.map_err(|error| ExecuteError::PodActions(Box::new(error)))?;
    Ok(executed)
}

async fn act_on_children(
    context: &Context,
    target: &Target<'_>,
    observed: &Observed,
    action: ChildAction,
    now: Timestamp,
) -> Result<Executed, ExecuteError> {
    let applied = match action {
        ChildAction::Keep => return Ok(Executed::default()),
        ChildAction::Remove(children) => {
            remove::remove(target, &children, &observed.children).await?;
            return Ok(Executed::default());
        }
        ChildAction::Apply(children, secrets) => {
            target.apply(&children, &observed.children, secrets).await
        }
        ChildAction::Release => target.release(&observed.children).await,
    };
    let (children, rejection) = match applied {
        Ok(children) => (children, None),
        Err(error @ ApplyError::Rejected { .. }) => (0, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let is_changed = context.memory.rejections.replace(target.uid, rejection.as_deref(), now);
    let rejection = match (is_changed, rejection) {
        (true, _) => Rejection::Changed,
        (false, Some(_)) => Rejection::Known,
        (false, None) => Rejection::None,
    };
    Ok(Executed { children, rejection })
}

/// Directs the task that talks to the coordinator.
pub fn direct_coordinator(context: &Context, object: &RLJob, action: CoordinatorAction) {
    let uid = object.uid().unwrap_or_default();
    match action {
        CoordinatorAction::Keep => {}
        CoordinatorAction::Send(order) => {
            context.pollers.send(&uid, ObjectRef::from_obj(object), *order);
        }
        CoordinatorAction::Forget => context.pollers.forget(&uid),
    }
}
