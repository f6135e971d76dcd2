//! Removes a finished job's children, all of them its own. What marks that there are any, the ConfigMap, goes last, so that a removal that was cut short is taken up again.

use futures::future::try_join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::DeleteParams;
use kube::{Api, Client, Resource};

use crate::desired::{Role, meta};
use crate::validate::ValidatedJob;

/// Removes everything that `apply` made. The caller has seen that no object of these names is somebody else's.
///
/// # Errors
/// Any request that fails; what is gone already is none.
pub async fn remove(client: &Client, job: &ValidatedJob) -> kube::Result<()> {
    let names = Role::ALL.map(|role| meta::role_name(job, role));
    try_join_all(names.iter().map(|name| remove_one::<StatefulSet>(client, job, name))).await?;
    try_join_all(names.iter().map(|name| remove_one::<Service>(client, job, name))).await?;
    remove_one::<PodDisruptionBudget>(client, job, &meta::role_name(job, Role::Inference)).await?;
    remove_one::<NetworkPolicy>(client, job, &job.name).await?;
    remove_one::<Secret>(client, job, &meta::secret_name(job)).await?;
    remove_one::<ConfigMap>(client, job, &meta::config_map_name(job)).await
}

async fn remove_one<K>(client: &Client, job: &ValidatedJob, name: &str) -> kube::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match Api::<K>::namespaced(client.clone(), &job.namespace).delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}
