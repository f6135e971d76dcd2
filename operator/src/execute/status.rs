//! Status write and events.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Resource, ResourceExt};
use rljob_crds::RLJob;
use rljob_crds::names::MANAGED_BY;
use rljob_crds::status::RLJobStatus;

use super::error::ExecuteError;
use crate::context::Context;
use crate::status::{self, StatusEvent};

/// Longest note of an event, in bytes.
const NOTE_LIMIT: usize = 1000;

/// Writes the status if it differs, then publishes its events. The write names the observed version
/// of the object, so a pass over an outdated object changes nothing.
///
/// # Errors
/// A conflict, or a request that fails.
pub async fn write_status(
    context: &Context,
    object: &RLJob,
    new: &RLJobStatus,
) -> Result<(), ExecuteError> {
    let old = object.status.clone().unwrap_or_default();
    if *new == old {
        return Ok(());
    }
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<RLJob> = Api::namespaced(context.client.clone(), &namespace);
    let mut replacement = object.clone();
    replacement.status = Some(new.clone());
    let parameters =
        PostParams { field_manager: Some(MANAGED_BY.to_owned()), ..PostParams::default() };
    match api.replace_status(&object.name_any(), &parameters, &replacement).await {
        Ok(stored) => context.memory.status_writes.record(
            &object.uid().unwrap_or_default(),
            stored.metadata.resource_version.as_deref(),
            Timestamp::now(),
        ),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            let message = "the RLJob changed while its status was being written";
            return Err(ExecuteError::Conflict(message.to_owned()));
        }
        Err(error) => return Err(ExecuteError::WriteStatus(Box::new(error))),
    }
    context.metrics.status_written(&old, new, Timestamp::now());
    for event in status::events(&old, new) {
        publish(context, object, event).await;
    }
    Ok(())
}

/// Publishes an event. A failure is only logged, because the status has the same information.
async fn publish(context: &Context, object: &RLJob, event: StatusEvent) {
    let StatusEvent { warning, reason, note, pod, pod_uid } = event;
    let secondary = pod.map(|name| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(name),
        namespace: object.namespace(),
        uid: pod_uid,
        ..ObjectReference::default()
    });
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason,
        note: Some(truncated(&note)),
        action: "Reconcile".to_owned(),
        secondary,
    };
    // A shared recorder would count repeated events under the note of the first one, and keep the
    // events of six minutes in memory.
    let recorder = Recorder::new(context.client.clone(), context.reporter.clone());
    if let Err(error) = recorder.publish(&event, &object.object_ref(&())).await {
        tracing::warn!(%error, "failed to publish event");
    }
}

fn truncated(note: &str) -> String {
    let longest = (0..=NOTE_LIMIT.min(note.len())).rev().find_map(|end| note.get(..end));
    longest.unwrap_or_default().to_owned()
}
