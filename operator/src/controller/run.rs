//! Triggers of passes: watches of RLJobs, their children and pods, and reports of coordinators.
//! Evicts deleted jobs from the memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::ready;
use futures::{StreamExt, TryStreamExt};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use rljob_crds::RLJob;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::reconcile::{error_policy, reconcile_measured};
use crate::cache::{self, WatchHealth};
use crate::context::Context;

/// Time between evictions of deleted jobs.
const EVICTION_PERIOD: Duration = Duration::from_secs(10);
/// Concurrent passes, each of another job.
const CONCURRENCY: u16 = 32;
/// kubectl's copy of the spec.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Creates the controller, not running yet, and its store of all jobs.
pub fn new(
    client: &Client,
    namespace: Option<&str>,
    health: &Arc<WatchHealth>,
) -> (Controller<RLJob>, Store<RLJob>) {
    let jobs: Api<DeserializeGuard<RLJob>> = namespace.map_or_else(
        || Api::all(client.clone()),
        |namespace| Api::namespaced(client.clone(), namespace),
    );
    let (store, writer) = reflector::store();
    let slim = |job: &mut RLJob| {
        job.metadata.managed_fields = None;
        job.annotations_mut().remove(LAST_APPLIED);
    };
    let known = store.clone();
    let (resource, health) = (RLJob::plural(&()), health.clone());
    health.start(&resource);
    let jobs = watcher(jobs, cache::config())
        .default_backoff()
        .inspect(move |event| health.record(&resource, event))
        .try_filter_map(move |event| ready(Ok(readable(event, &known))));
    let jobs = jobs.modify(slim).reflect(writer).applied_objects();
    let controller = Controller::for_stream(jobs, store.clone())
        .with_config(Config::default().concurrency(CONCURRENCY));
    (controller, store)
}

/// Converts an event of a readable object. An object that a newer CRD admitted may have fields that
/// this operator cannot parse. It is skipped; if it was readable before, it counts as deleted.
fn readable(
    event: watcher::Event<DeserializeGuard<RLJob>>,
    known: &Store<RLJob>,
) -> Option<watcher::Event<RLJob>> {
    let unreadable = |InvalidObject { error, metadata }: InvalidObject| {
        let (namespace, name) =
            (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        tracing::warn!(
            namespace,
            name,
            error,
            "skipping an RLJob that cannot be parsed: its CRD has another version"
        );
        known
            .get(&ObjectRef::new(&name).within(&namespace))
            .map(|job| Event::Delete((*job).clone()))
    };
    match event {
        Event::Apply(DeserializeGuard(job)) => {
            job.map_or_else(unreadable, |job| Some(Event::Apply(job)))
        }
        Event::Delete(DeserializeGuard(job)) => {
            job.map_or_else(unreadable, |job| Some(Event::Delete(job)))
        }
        // Objects that a list lacks are dropped at its end.
        Event::InitApply(DeserializeGuard(job)) => job.map_or_else(
            |invalid| unreadable(invalid).and(None),
            |job| Some(Event::InitApply(job)),
        ),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}

/// Runs the controller until `stop`, and finishes passes in progress.
pub async fn run(
    controller: Controller<RLJob>,
    context: Arc<Context>,
    triggers: mpsc::Receiver<ObjectRef<RLJob>>,
    stop: CancellationToken,
) {
    // Ends with the controller, even if that is dropped.
    let _eviction = AbortOnDropHandle::new(tokio::spawn(evict_deleted_jobs(
        controller.store(),
        context.clone(),
        stop.clone(),
    )));
    controller
        .reconcile_on(triggers)
        .reconcile_on(cache::changes(
            &context.cache,
            &context.health,
            &context.client,
            context.namespace.as_deref(),
        ))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile_measured, error_policy, context)
        .for_each(|result| async move {
            if let Err(kube::runtime::controller::Error::QueueError(error)) = result {
                tracing::warn!(%error, "watch failed; restarting it");
            }
        })
        .await;
}

/// Forgets deleted jobs. Without a finalizer, no pass observes a deletion.
async fn evict_deleted_jobs(store: Store<RLJob>, context: Arc<Context>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(EVICTION_PERIOD)).await.is_some() {
        let uids: HashSet<String> = store.state().iter().filter_map(|job| job.uid()).collect();
        context.pollers.retain(|uid| uids.contains(uid));
        context.memory.retain(|uid| uids.contains(uid));
    }
}
