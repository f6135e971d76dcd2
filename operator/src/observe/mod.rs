//! Observation of a job, once per pass: objects from the [`cache`](crate::cache), the coordinator's
//! last report, and the memory of earlier passes. Returns complete [`Facts`](crate::decide::Facts).
//!
//! Requests are sent only for names that the cache lacks, before children are created: an object
//! without the job's label may have such a name. Secrets are never read.

use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use kube::Client;
use kube::api::GetParams;
use rljob_crds::status::RLJobStatus;

use crate::cache::ObservedChild;
use crate::children::{ChildName, Kind, readable};
use crate::context::Context;
use crate::queue::workload_name;
use crate::validate::{InvalidSpec, Job};

mod facts;
mod gang;
mod objects;
mod queue;
mod warnings;

pub use facts::Observed;
use facts::Remembered;
use objects::Objects;
pub use objects::{CoordinatorPod, ObservedChildren};
pub use queue::{ObservedQueue, observe_queue};

/// Whether the pass may create children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It may: ask the API server for names that the cache lacks.
    UnknownNames,
    CacheOnly,
}

/// Observes a job, whose spec may be invalid and has its place in a queue applied.
///
/// # Errors
/// Any request that fails.
pub async fn observe(
    context: &Context,
    job: &Job,
    invalid: Option<&InvalidSpec>,
    queue: ObservedQueue,
    lookup: Lookup,
    old: &RLJobStatus,
    now: Timestamp,
) -> kube::Result<Observed> {
    let mut found: ObservedChildren = queue
        .child
        .iter()
        .map(|child| ((Kind::Workload, workload_name(job)), child.clone()))
        .collect();
    let own = context.cache.children_of(&job.namespace, &job.uid);
    found.extend(own.into_iter().filter(|((kind, _), _)| *kind != Kind::Workload));
    let mut unknown = Vec::new();
    let mut unreadable = Vec::new();
    let wanted = readable(job).into_iter().chain(gang::wanted(job, old));
    for name in wanted.filter(|name| !found.contains_key(name)).collect::<Vec<_>>() {
        match context.cache.child(&job.namespace, &name) {
            Some(child) => drop(found.insert(name, child)),
            None => unknown.push(name),
        }
    }
    if lookup == Lookup::UnknownNames {
        let requests = unknown.into_iter().map(|name| get(&context.client, &job.namespace, name));
        for answer in try_join_all(requests).await? {
            match answer {
                Lookedup::Found(name, child) => drop(found.insert(name, child)),
                Lookedup::Free => {}
                Lookedup::Forbidden(name, message) => unreadable.push((name, message)),
            }
        }
    }
    let mut objects = Objects::sort(job, found, context.cache.pods(&job.namespace, &job.name));
    let lacking = objects.lacking_set(job);
    let is_named = lacking.as_ref().is_some_and(|(name, _)| warnings::is_named(name, old));
    let lacking = lacking.as_ref().map(|(_, uid)| uid.as_str());
    objects.lacking_since = context.memory.lacking_sets.replace(&job.uid, lacking, is_named, now);
    let coordinator = objects.coordinator();
    let (uid, identity) = (&job.uid, coordinator.as_ref().map(|pod| pod.uid.as_str()));
    let unexplained = objects.unexplained(job);
    let warnings = unexplained
        .iter()
        .map(|object| warnings::warning(&context.client, &job.namespace, object, old, now));
    let warnings = join_all(warnings).await.into_iter().flatten().collect();
    let remembered = Remembered {
        report: identity.and_then(|identity| context.pollers.report(uid, identity)),
        silence: coordinator
            .as_ref()
            .and_then(|pod| context.pollers.silence(uid, &pod.uid, pod.restarts)),
        was_asked: identity.is_some_and(|identity| context.pollers.was_asked(uid, identity)),
        unsupported: identity.and_then(|identity| context.pollers.unsupported(uid, identity)),
        queue,
        rejection: context.memory.rejections.get(uid),
        unreadable,
        warnings,
        pods: context.memory.seen_pods.get(uid),
        last_write: context.memory.status_writes.last(uid),
    };
    Ok(objects.into_observed(job, old, invalid, remembered, now))
}

/// Gets an object. The API server may answer from its cache: a child is created only if its name is
/// still free.
async fn get(client: &Client, namespace: &str, (kind, name): ChildName) -> kube::Result<Lookedup> {
    match kind.api(client, Some(namespace)).get_with(&name, &GetParams::at("0")).await {
        Ok(object) => {
            Ok(Lookedup::Found((kind, name), Arc::new(ObservedChild::new(kind, &object))))
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Lookedup::Free),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            Ok(Lookedup::Forbidden((kind, name), status.message))
        }
        Err(error) => Err(error),
    }
}

/// Answer of the API server to a request for a name.
enum Lookedup {
    Found(ChildName, Arc<ObservedChild>),
    Free,
    /// A permission is missing.
    Forbidden(ChildName, String),
}

#[cfg(test)]
mod tests;
