//! What causes passes: the watch of RLJobs, their children's and pods' changes, and news of
//! coordinators; and what is forgotten of jobs that are gone.

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
use kube::{Api, Client, ResourceExt};
use rljob_crds::RLJob;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Context, error_policy, reconcile_measured};
use crate::cache::changes;

/// Time after which a deleted job is forgotten at the latest.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Passes at a time: of different jobs, since one job has one at a time.
const CONCURRENCY: u16 = 32;
/// Jobs in a page of a list.
const PAGE: u32 = 100;
/// What kubectl leaves in an object: the spec once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The controller, not running yet, and the store of all jobs that it keeps.
pub fn new(client: &Client, namespace: Option<&str>) -> (Controller<RLJob>, Store<RLJob>) {
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
    let jobs = watcher(jobs, watcher::Config::default().page_size(PAGE))
        .default_backoff()
        .try_filter_map(move |event| ready(Ok(readable(event, &known))));
    let jobs = jobs.modify(slim).reflect(writer).applied_objects();
    let controller = Controller::for_stream(jobs, store.clone())
        .with_config(Config::default().concurrency(CONCURRENCY));
    (controller, store)
}

/// The event of an object that can be read. One that a newer CRD admitted may have fields that this
/// operator knows nothing of: it is left as it is and holds up no other; if it could be read
/// before, it counts as gone.
fn readable(
    event: watcher::Event<DeserializeGuard<RLJob>>,
    known: &Store<RLJob>,
) -> Option<watcher::Event<RLJob>> {
    let gone = |InvalidObject { error, metadata }: InvalidObject| {
        let (namespace, name) =
            (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        tracing::warn!(
            namespace,
            name,
            error,
            "this RLJob cannot be read and is left alone: its CRD is of another version than this operator"
        );
        known
            .get(&ObjectRef::new(&name).within(&namespace))
            .map(|job| Event::Delete((*job).clone()))
    };
    match event {
        Event::Apply(DeserializeGuard(job)) => job.map_or_else(gone, |job| Some(Event::Apply(job))),
        Event::Delete(DeserializeGuard(job)) => {
            job.map_or_else(gone, |job| Some(Event::Delete(job)))
        }
        // What a listing does not name is forgotten at its end.
        Event::InitApply(DeserializeGuard(job)) => {
            job.map_or_else(|invalid| gone(invalid).and(None), |job| Some(Event::InitApply(job)))
        }
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}

/// Runs the controller until `stop`; passes in progress are finished.
pub async fn run(
    controller: Controller<RLJob>,
    context: Arc<Context>,
    triggers: mpsc::Receiver<ObjectRef<RLJob>>,
    stop: CancellationToken,
) {
    // Ends with the controller, also if that is dropped.
    let _housekeeping = AbortOnDropHandle::new(tokio::spawn(keep_house(
        controller.store(),
        context.clone(),
        stop.clone(),
    )));
    controller
        .reconcile_on(triggers)
        .reconcile_on(changes(&context.cache, &context.client, context.namespace.as_deref()))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile_measured, error_policy, context)
        .for_each(|result| async move {
            if let Err(kube::runtime::controller::Error::QueueError(error)) = result {
                tracing::warn!(%error, "a watch failed and is being started again");
            }
        })
        .await;
}

/// Forgets jobs that are gone: without a finalizer, no pass sees a deletion.
async fn keep_house(store: Store<RLJob>, context: Arc<Context>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(HOUSEKEEPING)).await.is_some() {
        let uids: HashSet<String> = store.state().iter().filter_map(|job| job.uid()).collect();
        context.pollers.retain(|uid| uids.contains(uid));
        context.failures.retain(|uid| uids.contains(uid));
        context.rejections.retain(|uid| uids.contains(uid));
        context.applied.retain(|uid| uids.contains(uid));
        context.written.retain(|uid| uids.contains(uid));
        context.last_seen.retain(|uid| uids.contains(uid));
    }
}
