//! Does to pods what was planned for them. Each request names the pod's UID and version: one that is another pod by now, or has changed, is left to the next pass.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client};

use crate::pods::{Plan, Removal};

/// Carries the plan out.
///
/// # Errors
/// Any request that fails, but for a pod that is gone or has changed.
pub async fn tend(client: &Client, namespace: &str, plan: &Plan) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    try_join_all(plan.removals.iter().map(|removal| remove(&pods, removal))).await.map(drop)
}

async fn remove(pods: &Api<Pod>, removal: &Removal) -> kube::Result<()> {
    let Removal { name, uid, resource_version, grace_seconds } = removal;
    let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: resource_version.clone() };
    let parameters = DeleteParams { grace_period_seconds: Some(*grace_seconds), preconditions: Some(preconditions), ..DeleteParams::default() };
    tracing::info!(pod = name, uid, grace_seconds, "removing a pod");
    match pods.delete(name, &parameters).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}
