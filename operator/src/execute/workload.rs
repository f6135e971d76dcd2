//! Writes of a queued job's Workload: reports in its status, and its deletion. Each names the UID
//! and the resourceVersion that were observed. Its creation is an apply of a child.

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use rljob_crds::names::MANAGED_BY;
use serde_json::json;

use super::apply::Target;
use super::error::ExecuteError;
use crate::cache::ObservedChild;
use crate::children::Kind;
use crate::queue::plan::WorkloadAction;

/// Executes the action on the observed Workload.
///
/// # Errors
/// A conflict, or a request that fails.
pub(super) async fn act(
    target: &Target<'_>,
    name: &str,
    observed: Option<&ObservedChild>,
    action: WorkloadAction,
) -> Result<(), ExecuteError> {
    let Some(ObservedChild { uid, version, .. }) = observed else { return Ok(()) };
    let api: Api<DynamicObject> = Kind::Workload.api(target.client, Some(target.namespace));
    let result = match action {
        WorkloadAction::Keep | WorkloadAction::Apply => return Ok(()),
        WorkloadAction::Report(status) => {
            let patch = json!({
                "metadata": {"uid": uid, "resourceVersion": version}, "status": status,
            });
            let parameters = PatchParams {
                field_manager: Some(MANAGED_BY.to_owned()),
                ..PatchParams::default()
            };
            let stored = api.patch_status(name, &parameters, &Patch::Merge(patch)).await;
            stored.map(|stored| drop(target.cache.store_written(Kind::Workload, &stored)))
        }
        WorkloadAction::Delete => {
            let preconditions = Preconditions {
                uid: Some(uid.to_string()),
                resource_version: Some(version.to_string()),
            };
            let parameters = DeleteParams::background().preconditions(preconditions);
            api.delete(name, &parameters).await.map(|_| {
                target.cache.drop_deleted(Kind::Workload, target.namespace, name, version);
            })
        }
    };
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            Err(ExecuteError::Conflict(format!("Workload {name} changed since it was observed")))
        }
        result => result.map_err(|error| ExecuteError::WriteWorkload(Box::new(error))),
    }
}
