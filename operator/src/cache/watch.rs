//! Watches that fill the cache, and the jobs that their events belong to.
//!
//! Lists are paged and consistent, not served from a server's cache: an old list cannot mislead a
//! new operator.

use std::fmt::Debug;
use std::sync::Arc;

use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1;
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use rljob_crds::RLJob;
use rljob_crds::names::LABEL_JOB;
use serde::de::DeserializeOwned;

use super::health::WatchHealth;
use super::pod::Pod;
use super::store::Cache;
use crate::children::{Kind, objects};

/// Page size of lists; bounds the memory use of a start.
const PAGE: u32 = 100;
/// Duration of a watch. A connection that has died silently is noticed 5 s later.
pub const WATCH_SECONDS: u32 = 120;

/// Settings of every watch.
pub fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS)
}

/// Updates the cache while it is polled, and yields every job whose children or pods changed.
pub fn changes(
    cache: &Arc<Cache>,
    health: &Arc<WatchHealth>,
    client: &Client,
    namespace: Option<&str>,
) -> SelectAll<BoxStream<'static, ObjectRef<RLJob>>> {
    let mut all = SelectAll::new();
    for kind in cache.kinds() {
        let cache = cache.clone();
        let api = kind.api(client, namespace);
        let handle = {
            let cache = cache.clone();
            move |event| cache.handle_child(kind, event)
        };
        let rejected = move || cache.skip(kind);
        all.push(jobs(api, watch_name(kind), health.clone(), handle, rejected));
    }
    let pods: Api<Pod> = objects(client, namespace, &ApiResource::erase::<v1::Pod>(&()));
    let cache = cache.clone();
    let handle = move |event| cache.handle_pod(event);
    all.push(jobs(pods, "pods".to_owned(), health.clone(), handle, || ()));
    all
}

/// Name of a watch in reports: the resource, and its group if several groups have it.
fn watch_name(kind: Kind) -> String {
    let resource = kind.resource();
    match kind {
        Kind::PodGroup(_) => format!("{}.{}", resource.plural, resource.group),
        _ => resource.plural,
    }
}

/// Jobs of the events of one watch. `rejected` is called when the API server rejects it.
fn jobs<K>(
    api: Api<K>,
    resource: String,
    health: Arc<WatchHealth>,
    handle: impl Fn(Event<K>) -> Vec<ObjectRef<RLJob>> + Send + 'static,
    rejected: impl Fn() + Send + 'static,
) -> BoxStream<'static, ObjectRef<RLJob>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    health.start(&resource);
    let jobs = move |event: watcher::Result<Event<K>>| {
        health.record(&resource, &event);
        match event {
            Ok(event) => handle(event),
            Err(error) => {
                tracing::warn!(resource, %error, "watch failed; restarting it");
                if is_rejected(&error) {
                    rejected();
                }
                Vec::new()
            }
        }
    };
    watcher(api, config().labels(LABEL_JOB))
        .default_backoff()
        .map(jobs)
        .flat_map(stream::iter)
        .boxed()
}

/// Whether the API server rejects the request: a right is missing, or it lacks the resource.
fn is_rejected(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause)
    | watcher::Error::WatchStartFailed(cause)
    | watcher::Error::WatchFailed(cause)) = error
    else {
        return false;
    };
    matches!(cause, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}
