//! Applies a job's objects: server-side, one field manager, strict about unknown fields, in a fixed order. Nothing is ever deleted here.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use rljob_crds::names::MANAGED_BY;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::desired::Resources;

/// An object that could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server will refuse it again: the object is not valid, or a policy or quota is against it.
    #[error("the API server refused {kind} {name}: {message}")]
    Rejected {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// The API server's words.
        message: String,
    },
    /// The request failed; it may succeed the next time.
    #[error("failed to apply {kind} {name}")]
    Failed {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Applies everything: what pods mount and are guarded by first, the pods' owners last.
///
/// # Errors
/// The first object that cannot be applied; those before it are.
pub async fn apply(client: &Client, resources: &Resources) -> Result<(), ApplyError> {
    let Resources { config_map, secret, network_policy, disruption_budget, services, stateful_sets } = resources;
    apply_one(client, secret).await?;
    apply_one(client, config_map).await?;
    apply_one(client, network_policy).await?;
    apply_one(client, disruption_budget).await?;
    for service in services {
        apply_one(client, service).await?;
    }
    for stateful_set in stateful_sets {
        apply_one(client, stateful_set).await?;
    }
    Ok(())
}

async fn apply_one<K>(client: &Client, object: &K) -> Result<(), ApplyError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (kind, name) = (K::kind(&()).into_owned(), object.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let parameters = PatchParams::apply(MANAGED_BY).force().validation_strict();
    match api.patch(&name, &parameters, &Patch::Apply(object)).await {
        Ok(_) => Ok(()),
        // 400 and 422: not valid; 403: a policy or a quota.
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => Err(ApplyError::Rejected { kind, name, message: status.message }),
        Err(error) => Err(ApplyError::Failed { kind, name, source: Box::new(error) }),
    }
}
