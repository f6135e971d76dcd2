//! The cache: tables of children and pods, and the jobs that a change belongs to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use rljob_crds::RLJob;
use rljob_crds::names::LABEL_JOB;
use tokio::sync::watch as signal;

use super::child::{ObservedChild, number};
use super::pod::{self, Pod};
use super::table::{Name, Table};
use crate::children::{ChildName, Kind};
use crate::queue::NAME_PREFIX;

#[derive(Debug)]
pub struct Cache {
    tables: Mutex<Tables>,
    listed: signal::Sender<bool>,
}

#[derive(Debug, Default)]
struct Tables {
    children: BTreeMap<Kind, Table<ObservedChild>>,
    /// Names of children by the UID of their controlling owner.
    children_of: HashMap<Box<str>, BTreeSet<ChildName>>,
    pods: Table<Pod>,
    /// Names of the pods with a job's label, by namespace and job.
    pods_of: HashMap<Name, BTreeSet<String>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self::new(&Kind::WATCHED)
    }
}

impl Cache {
    /// A cache of pods and of these kinds.
    pub fn new(kinds: &[Kind]) -> Self {
        let children = kinds.iter().map(|kind| (*kind, Table::default())).collect();
        Self {
            tables: Mutex::new(Tables { children, ..Tables::default() }),
            listed: signal::Sender::new(false),
        }
    }

    /// The kinds of children that it has.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        self.lock().children.keys().copied().collect()
    }

    /// Waits until every kind has been listed once, except skipped ones.
    pub async fn wait_until_listed(&self) {
        // The error case needs a dropped sender, and the cache owns the sender.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Lets passes start although the API server rejects lists of this kind, unless pods depend on
    /// its objects being known.
    pub(super) fn skip(&self, kind: Kind) {
        let mut tables = self.lock();
        if let Some(table) = tables.children.get_mut(&kind).filter(|_| !kind.is_essential()) {
            table.skipped = true;
        }
        self.signal_listed(&tables);
    }

    /// The highest version of an object of each resource; 0 without any.
    pub fn highest_versions(&self) -> Vec<(ApiResource, u64)> {
        let tables = self.lock();
        let children = tables.children.iter().map(|(kind, table)| (kind.resource(), table.highest));
        let pods = (ApiResource::erase::<v1::Pod>(&()), tables.pods.highest);
        children.chain([pods]).collect()
    }

    /// A child of this name, with any owner.
    pub fn child(&self, namespace: &str, (kind, name): &ChildName) -> Option<Arc<ObservedChild>> {
        self.lock().children.get(kind)?.get(&(namespace.to_owned(), name.clone())).cloned()
    }

    /// Every child that this object controls, by name.
    pub fn children_of(&self, namespace: &str, uid: &str) -> Vec<(ChildName, Arc<ObservedChild>)> {
        let tables = self.lock();
        let names = tables.children_of.get(uid).into_iter().flatten();
        let found = names.filter_map(|(kind, name)| {
            let child = tables.children.get(kind)?.get(&(namespace.to_owned(), name.clone()))?;
            Some(((*kind, name.clone()), child.clone()))
        });
        found.collect()
    }

    /// Every pod with the job's label and any owner, by name.
    pub fn pods(&self, namespace: &str, job: &str) -> Vec<Arc<Pod>> {
        let tables = self.lock();
        let names = tables.pods_of.get(&(namespace.to_owned(), job.to_owned()));
        names
            .into_iter()
            .flatten()
            .filter_map(|pod| tables.pods.get(&(namespace.to_owned(), pod.clone())).cloned())
            .collect()
    }

    /// Stores the API server's response to a write of a child.
    pub fn store_written(&self, kind: Kind, object: &DynamicObject) -> ObservedChild {
        let child = ObservedChild::new(kind, object);
        self.lock().put_child(kind, object, child.clone());
        child
    }

    /// Drops a child that was deleted at this version, so that no pass deletes it again before the
    /// watch reports the deletion. The watch restores a child that finalizers keep.
    pub fn drop_deleted(&self, kind: Kind, namespace: &str, name: &str, version: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        self.lock().remove_child(kind, &name, number(Some(version)));
    }

    /// Applies a watch event of a child. Returns the jobs to reconcile.
    pub(super) fn handle_child(
        &self,
        kind: Kind,
        event: Event<DynamicObject>,
    ) -> Vec<ObjectRef<RLJob>> {
        let mut tables = self.lock();
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                tables.put_child(kind, &object, ObservedChild::new(kind, &object));
                job_of(&object).into_iter().collect()
            }
            Event::Delete(object) => {
                let version = number(object.metadata.resource_version.as_deref());
                tables.remove_child(kind, &name_of(&object), version);
                job_of(&object).into_iter().collect()
            }
            Event::Init => {
                tables.children.get_mut(&kind).map(Table::begin_list);
                Vec::new()
            }
            Event::InitDone => {
                let gone = tables.children.get_mut(&kind).map(Table::end_list).unwrap_or_default();
                for ((_, name), child) in &gone {
                    tables.disown(kind, name, child);
                }
                self.signal_listed(&tables);
                // Owners are not kept: names of children start with the job's name, and passes of
                // jobs that do not exist are ignored.
                gone.into_iter()
                    .flat_map(|((namespace, name), _)| jobs_by_name(&namespace, &name))
                    .collect()
            }
        }
    }

    /// Applies a watch event of a pod. Returns the jobs to reconcile.
    pub(super) fn handle_pod(&self, event: Event<Pod>) -> Vec<ObjectRef<RLJob>> {
        let mut tables = self.lock();
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let job = job_of(&pod);
                tables.put_pod(pod);
                job.into_iter().collect()
            }
            Event::Delete(pod) => {
                tables.remove_pod(&pod);
                job_of(&pod).into_iter().collect()
            }
            Event::Init => {
                tables.pods.begin_list();
                Vec::new()
            }
            Event::InitDone => {
                let gone = tables.pods.end_list();
                for (_, pod) in &gone {
                    tables.unlink(pod);
                }
                self.signal_listed(&tables);
                gone.iter().filter_map(|(_, pod)| job_of(pod.as_ref())).collect()
            }
        }
    }

    fn signal_listed(&self, tables: &Tables) {
        let mut children = tables.children.values();
        let all = tables.pods.listed && children.all(|table| table.listed || table.skipped);
        self.listed.send_if_modified(|listed| all && !std::mem::replace(listed, true));
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Entries are replaced whole.
        self.tables.lock()
    }
}

impl Tables {
    /// Stores a child, unless a newer version is known.
    fn put_child(&mut self, kind: Kind, object: &DynamicObject, child: ObservedChild) {
        let (name, version) =
            (name_of(object), number(object.metadata.resource_version.as_deref()));
        let owner = child.owner.clone();
        let Some(table) = self.children.get_mut(&kind) else { return };
        let Ok(old) = table.put(name.clone(), version, child) else { return };
        if let Some(old) = old {
            self.disown(kind, &name.1, &old);
        }
        if let Some(owner) = owner {
            self.children_of.entry(owner).or_default().insert((kind, name.1));
        }
    }

    fn remove_child(&mut self, kind: Kind, name: &Name, version: u64) {
        let table = self.children.get_mut(&kind);
        if let Some(old) = table.and_then(|table| table.remove(name, version)) {
            self.disown(kind, &name.1, &old);
        }
    }

    fn disown(&mut self, kind: Kind, name: &str, child: &ObservedChild) {
        let Some(owner) = &child.owner else { return };
        if let Some(names) = self.children_of.get_mut(owner) {
            names.remove(&(kind, name.to_owned()));
            if names.is_empty() {
                self.children_of.remove(owner);
            }
        }
    }

    fn put_pod(&mut self, pod: Pod) {
        let (name, version) = (name_of(&pod), number(pod.metadata.resource_version.as_deref()));
        let job = pod.labels().get(LABEL_JOB).cloned();
        let Ok(old) = self.pods.put(name.clone(), version, pod::slim(pod)) else { return };
        if let Some(old) = old {
            self.unlink(&old);
        }
        if let Some(job) = job {
            self.pods_of.entry((name.0, job)).or_default().insert(name.1);
        }
    }

    fn remove_pod(&mut self, pod: &Pod) {
        if let Some(old) =
            self.pods.remove(&name_of(pod), number(pod.metadata.resource_version.as_deref()))
        {
            self.unlink(&old);
        }
    }

    fn unlink(&mut self, pod: &Pod) {
        let Some(job) = pod.labels().get(LABEL_JOB) else { return };
        let (namespace, name) = name_of(pod);
        let job = (namespace, job.clone());
        if let Some(names) = self.pods_of.get_mut(&job) {
            names.remove(&name);
            if names.is_empty() {
                self.pods_of.remove(&job);
            }
        }
    }
}

fn name_of<K: ResourceExt>(object: &K) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The job that owns an object, or that its label names.
fn job_of<K: ResourceExt>(object: &K) -> Option<ObjectRef<RLJob>> {
    let owner = object
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == RLJob::kind(&()));
    let name = owner.map(|owner| &owner.name).or_else(|| object.labels().get(LABEL_JOB))?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

/// Every job that could have a child of that name: the name itself, and each prefix that ends
/// before a hyphen or a dot; names of Workloads start with their kind of owner.
fn jobs_by_name(namespace: &str, name: &str) -> Vec<ObjectRef<RLJob>> {
    let name = name.strip_prefix(NAME_PREFIX).unwrap_or(name);
    let ends = name.match_indices(['-', '.']).map(|(end, _)| end).chain([name.len()]);
    let names = ends.filter_map(|end| name.get(..end));
    names.map(|name| ObjectRef::new(name).within(namespace)).collect()
}

#[cfg(test)]
mod tests;
