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

use super::pod::Pod;
use super::store::Cache;
use crate::children::{Kind, objects};

/// Page size of lists; bounds the memory use of a start.
const PAGE: u32 = 100;

/// Updates the cache while it is polled, and yields every job whose children or pods changed.
pub fn changes(
    cache: &Arc<Cache>,
    client: &Client,
    namespace: Option<&str>,
) -> SelectAll<BoxStream<'static, ObjectRef<RLJob>>> {
    let mut all = SelectAll::new();
    for kind in Kind::WATCHED {
        let cache = cache.clone();
        all.push(jobs(kind.api(client, namespace), kind.to_string(), move |event| {
            cache.handle_child(kind, event)
        }));
    }
    let pods: Api<Pod> = objects(client, namespace, &ApiResource::erase::<v1::Pod>(&()));
    let cache = cache.clone();
    all.push(jobs(pods, "Pod".to_owned(), move |event| cache.handle_pod(event)));
    all
}

fn jobs<K>(
    api: Api<K>,
    kind: String,
    handle: impl Fn(Event<K>) -> Vec<ObjectRef<RLJob>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<RLJob>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let labelled = watcher::Config::default().labels(LABEL_JOB).page_size(PAGE);
    let jobs = move |event: watcher::Result<Event<K>>| match event {
        Ok(event) => handle(event),
        Err(error) => {
            tracing::warn!(kind, %error, "watch failed; restarting it");
            Vec::new()
        }
    };
    watcher(api, labelled).default_backoff().map(jobs).flat_map(stream::iter).boxed()
}
