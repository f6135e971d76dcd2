//! Observation of a job's place in a queue of Kueue: its Workload from the cache; and, when they
//! are needed for a start or for a new Workload, ResourceFlavors and priority classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::try_join_all;
use kube::Client;
use kube::api::{ApiResource, DynamicObject, GetParams};
use serde::de::DeserializeOwned;

use k8s_openapi::api::scheduling::v1::PriorityClass as PodPriorityClass;

use crate::cache::ObservedChild;
use crate::children::{Kind, kueue_resource, objects};
use crate::context::Context;
use crate::decide::Queue;
use crate::desired::{Role, meta};
use crate::queue::admission::{queue, without_kueue};
use crate::queue::build::{Priority, wanted_class};
use crate::queue::placement::{Flavor, Placements, flavors, placements};
use crate::queue::workload::{PriorityClass, Workload};
use crate::queue::{API_GROUP, queue_name, workload_name};
use crate::validate::Job;

/// A job's place in a queue.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ObservedQueue {
    /// The job's Workload.
    pub child: Option<Arc<ObservedChild>>,
    pub facts: Option<Queue>,
    /// Placement of pods that start now; empty at other times, because templates are pinned.
    pub placements: Placements,
    /// Priority of a Workload that is created or updated now.
    pub priority: Option<Priority>,
    /// Why the Workload cannot be created.
    pub problem: Option<String>,
}

impl ObservedQueue {
    pub fn workload(&self) -> Option<&Workload> {
        self.child.as_ref()?.workload.as_deref()
    }
}

/// Observes the place of a job, whose spec may be invalid. `is_active` is whether it may start or
/// be queued: it has not ended.
///
/// # Errors
/// Any request that fails.
pub async fn observe_queue(
    context: &Context,
    job: &Job,
    is_active: bool,
) -> kube::Result<ObservedQueue> {
    if !context.settings.kueue {
        return Ok(ObservedQueue { facts: without_kueue(job), ..ObservedQueue::default() });
    }
    let is_active = is_active && !job.spec.suspend;
    let child = workload_child(context, job, is_active).await?;
    let (child, foreign): (Option<_>, _) = match child {
        Some(child) if child.owner.as_deref() != Some(job.uid.as_str()) => (None, true),
        child => (child, false),
    };
    let mut queued = ObservedQueue { child, ..ObservedQueue::default() };
    if foreign {
        let name = workload_name(job);
        queued.problem = Some(format!("Workload {name} belongs to another owner; delete it"));
    } else if is_active {
        match queued.workload() {
            Some(workload) if workload.is_reserved() => {
                if workload.may_run() && !has_coordinator(context, job) {
                    let name = workload_name(job);
                    queued.placements = placements_of(&context.client, &name, workload).await?;
                }
            }
            workload => match priority(&context.client, job, workload).await? {
                Ok(priority) => queued.priority = priority,
                Err(problem) => queued.problem = Some(problem),
            },
        }
    }
    queued.facts = queue(job, queued.workload(), queued.problem.as_deref());
    Ok(queued)
}

/// The Workload from the cache. A name that the cache lacks is looked up for a job that needs it.
async fn workload_child(
    context: &Context,
    job: &Job,
    is_active: bool,
) -> kube::Result<Option<Arc<ObservedChild>>> {
    let name = workload_name(job);
    let cached = context.cache.child(&job.namespace, &(Kind::Workload, name.clone()));
    if cached.is_some() || !is_active || queue_name(job).is_none() {
        return Ok(cached);
    }
    let api = Kind::Workload.api(&context.client, Some(&job.namespace));
    let found = absent(api.get_with(&name, &GetParams::at("0")).await)?;
    Ok(found.map(|object| Arc::new(ObservedChild::new(Kind::Workload, &object))))
}

/// Whether the coordinator's StatefulSet wants a pod: the templates of all roles are pinned.
fn has_coordinator(context: &Context, job: &Job) -> bool {
    let name = (Kind::StatefulSet, meta::role_name(job, Role::Coordinator));
    let child = context.cache.child(&job.namespace, &name);
    let set = child.as_ref().and_then(|child| child.set.as_ref());
    set.is_some_and(|set| set.replicas > 0)
}

async fn placements_of(
    client: &Client,
    name: &str,
    workload: &Workload,
) -> kube::Result<Placements> {
    let resource = kueue_resource("ResourceFlavor", "resourceflavors");
    let flavors = flavors(workload).into_iter().map(async |name| {
        let flavor: Option<Flavor> = field(client, &resource, name, "spec").await?;
        Ok::<_, kube::Error>((name.to_owned(), flavor.unwrap_or_default()))
    });
    let flavors: BTreeMap<String, Flavor> = try_join_all(flavors).await?.into_iter().collect();
    Ok(placements(name, workload, &flavors))
}

/// The priority of the job's Workload, or why it has none. The value of a class that the Workload
/// has already is known.
async fn priority(
    client: &Client,
    job: &Job,
    workload: Option<&Workload>,
) -> kube::Result<Result<Option<Priority>, String>> {
    let Some(class) = wanted_class(job).filter(|_| queue_name(job).is_some()) else {
        return Ok(Ok(None));
    };
    let known = workload.filter(|workload| workload.spec.priority_class_ref == Some(class.clone()));
    if let Some(value) = known.and_then(|workload| workload.spec.priority) {
        return Ok(Ok(Some(Priority { class, value })));
    }
    let value: Option<i32> = field(client, &resource_of(&class), &class.name, "value").await?;
    Ok(match value {
        Some(value) => Ok(Some(Priority { class, value })),
        None => Err(format!(
            "{} {} does not exist, so that the job cannot be queued; create it",
            class.kind, class.name
        )),
    })
}

fn resource_of(class: &PriorityClass) -> ApiResource {
    if class.group == API_GROUP {
        kueue_resource(&class.kind, "workloadpriorityclasses")
    } else {
        ApiResource::erase::<PodPriorityClass>(&())
    }
}

/// A field of a cluster-scoped object; `None` if the object or the field does not exist.
async fn field<T: DeserializeOwned>(
    client: &Client,
    resource: &ApiResource,
    name: &str,
    field: &str,
) -> kube::Result<Option<T>> {
    let api: kube::Api<DynamicObject> = objects(client, None, resource);
    let Some(object) = absent(api.get_with(name, &GetParams::at("0")).await)? else {
        return Ok(None);
    };
    let value = object.data.get(field).cloned();
    value.map(|value| serde_json::from_value(value).map_err(kube::Error::SerdeError)).transpose()
}

fn absent<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
