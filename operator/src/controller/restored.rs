//! Detection of an API server whose data was restored to an older state, from a backup of etcd. The
//! cache ignores versions below those that it knows, and watches wait for versions that do not
//! exist yet: the leader starts over with an empty cache.

use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt};
use rljob_crds::RLJob;

use crate::cache::{Cache, WatchHealth, number};
use crate::children::objects;

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(5);

/// Completes when the current version of a resource is lower than that of an object which was
/// observed before. Checks after a watch has failed or lists again: a restored API server was
/// restarted. Versions of one resource are comparable, those of two are not.
pub async fn restored(
    client: &Client,
    namespace: Option<&str>,
    jobs: &Store<RLJob>,
    cache: &Cache,
    health: &WatchHealth,
) {
    loop {
        health.disturbed().await;
        let mut known = cache.highest_versions();
        known.push((ApiResource::erase::<RLJob>(&()), highest_version(jobs)));
        for (resource, known) in known.into_iter().filter(|(_, known)| *known > 0) {
            let Ok(current) = current_version(client, namespace, &resource).await else { break };
            if current < known {
                tracing::warn!(
                    resource = resource.plural,
                    current,
                    known,
                    "the API server was restored to an older state; starting over"
                );
                return;
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn highest_version(jobs: &Store<RLJob>) -> u64 {
    let versions = jobs.state().into_iter().map(|job| number(job.resource_version().as_deref()));
    versions.max().unwrap_or_default()
}

/// The version of a consistent list.
async fn current_version(
    client: &Client,
    namespace: Option<&str>,
    resource: &ApiResource,
) -> kube::Result<u64> {
    let api: Api<DynamicObject> = objects(client, namespace, resource);
    let list = api.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(number(list.metadata.resource_version.as_deref()))
}
