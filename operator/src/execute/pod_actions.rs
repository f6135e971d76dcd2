//! Pod actions: deletes pods and sets readiness gates. Each request names the pod's UID; a pod that
//! has changed since is left to the next pass.

use futures::future::{join, join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use rljob_crds::names::{GATE_WEIGHTS_SYNCED, MANAGED_BY};
use serde_json::json;

use crate::pods::{GateChange, PodPlan, Removal};

/// Performs the actions of a plan.
///
/// # Errors
/// Any request that fails, except for a pod that is gone or has changed.
pub(super) async fn act(
    client: &Client,
    namespace: &str,
    plan: &PodPlan,
    now: Timestamp,
) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let removals = join_all(plan.removals.iter().map(|removal| remove(&pods, removal)));
    let gates = join_all(plan.gates.iter().map(|change| set_gate(&pods, change, now)));
    // All requests are awaited: a cancelled one may have succeeded and would be sent again.
    let (removals, gates) = join(removals, gates).await;
    removals.into_iter().chain(gates).collect()
}

async fn remove(pods: &Api<Pod>, removal: &Removal) -> kube::Result<()> {
    let Removal { name, uid, resource_version, reason } = removal;
    let preconditions =
        Preconditions { uid: Some(uid.clone()), resource_version: resource_version.clone() };
    let parameters = DeleteParams {
        grace_period_seconds: Some(reason.grace_seconds()),
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    tracing::info!(pod = name, uid, ?reason, "deleting pod");
    unless_changed(pods.delete(name, &parameters).await)
}

/// Sets the gate by a strategic merge, which keeps the conditions of other controllers. The UID in
/// it is a precondition.
async fn set_gate(pods: &Api<Pod>, change: &GateChange, now: Timestamp) -> kube::Result<()> {
    let GateChange { name, uid, gate, reason } = change;
    let status = if gate.open { "True" } else { "False" };
    let condition = json!({
        "type": GATE_WEIGHTS_SYNCED,
        "status": status,
        "reason": reason,
        "message": gate.message,
        "lastTransitionTime": now.round(jiff::Unit::Second).unwrap_or(now),
    });
    let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
    let parameters =
        PatchParams { field_manager: Some(MANAGED_BY.to_owned()), ..PatchParams::default() };
    unless_changed(pods.patch_status(name, &parameters, &Patch::Strategic(patch)).await)
}

fn unless_changed<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}
