//! What exists of a job, once a pass, from the [`cache`](crate::cache). No interpretation but
//! sorting: own children by name, pods by role, and objects that have a child's name and belong to
//! somebody else.
//!
//! Only a name that the cache does not hold is asked for: before a child is made, an object without
//! the job's label may have its name. Secrets are never read.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::try_join_all;
use jiff::Timestamp;
use kube::api::GetParams;
use kube::{Client, ResourceExt};
use rljob_crds::names::{COORDINATOR_PORT, LABEL_ROLE};

use crate::cache::{Cache, Live, Pod};
use crate::children::{ChildName, Kind, readable};
use crate::decide::Wanted;
use crate::desired::pin::LiveSet;
use crate::desired::{Pinned, Role, meta};
use crate::pods;
use crate::validate::ValidatedJob;

mod facts;

/// What exists of a job.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The own children, but for the Secret.
    pub children: BTreeMap<ChildName, Arc<Live>>,
    /// The StatefulSets among them.
    pub sets: BTreeMap<Role, LiveSet>,
    /// Pods by role, by name; terminating ones included.
    pub pods: BTreeMap<Role, Vec<Arc<Pod>>>,
    /// `Kind name` of every object that has a child's name and is not this job's.
    pub foreign: Vec<String>,
}

/// What exists of a job. With a client, names that the cache does not hold are asked for.
///
/// # Errors
/// Any request that fails.
pub async fn observe(
    cache: &Cache,
    client: Option<&Client>,
    job: &ValidatedJob,
) -> kube::Result<Observed> {
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    for name in readable(job) {
        match cache.child(&job.namespace, &name) {
            Some(live) => found.push((name, live)),
            None => unknown.push(name),
        }
    }
    if let Some(client) = client {
        let asked =
            try_join_all(unknown.into_iter().map(|name| look_up(client, &job.namespace, name)))
                .await?;
        found.extend(asked.into_iter().flatten());
    }
    Ok(Observed::sort(job, found, cache.pods(&job.namespace, &job.name)))
}

/// What the API server has under a name. It may answer from its cache: what is then made is made
/// only if there is nothing yet.
async fn look_up(
    client: &Client,
    namespace: &str,
    (kind, name): ChildName,
) -> kube::Result<Option<(ChildName, Arc<Live>)>> {
    match kind.api(client, Some(namespace)).get_with(&name, &GetParams::at("0")).await {
        Ok(object) => Ok(Some(((kind, name), Arc::new(Live::new(kind, &object))))),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Observed {
    fn sort(job: &ValidatedJob, found: Vec<(ChildName, Arc<Live>)>, pods: Vec<Arc<Pod>>) -> Self {
        let mut observed = Self::default();
        for (name, live) in found {
            if live.owner.as_deref() == Some(job.uid.as_str()) {
                observed.children.insert(name, live);
            } else {
                observed.foreign.push(format!("{} {}", name.0, name.1));
            }
        }
        let mut owners = BTreeMap::new();
        for role in Role::ALL {
            if let Some(live) =
                observed.children.get(&(Kind::StatefulSet, meta::role_name(job, role)))
            {
                owners.insert(role, live.uid.clone());
                observed.sets.extend(live.set.clone().map(|set| (role, set)));
            }
        }
        observed.sort_pods(&owners, pods);
        observed
    }

    /// Keeps the pods that one of the own StatefulSets controls, by role.
    fn sort_pods(&mut self, owners: &BTreeMap<Role, Box<str>>, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            let role = pod.labels().get(LABEL_ROLE).and_then(|role| Role::parse(role));
            let set = role.and_then(|role| owners.get(&role));
            let controlled =
                set.is_some() && crate::cache::owner(&pod.metadata) == set.map(|uid| &**uid);
            if let Some(role) = role.filter(|_| controlled) {
                self.pods.entry(role).or_default().push(pod);
            }
        }
        for role in self.pods.values_mut() {
            role.sort_by_key(|pod| pods::ordinal(pod));
        }
    }

    /// Whether there is anything left to remove.
    pub fn has_children(&self) -> bool {
        self.children.keys().any(|(kind, _)| matches!(kind, Kind::ConfigMap | Kind::StatefulSet))
    }

    /// Since when a pod that has a node waits for its volumes: something that it mounts is missing.
    pub fn unmounted_since(&self) -> Option<Timestamp> {
        let waits = |pod: &Arc<Pod>| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let find = |type_: &str, status: &str| {
                conditions
                    .iter()
                    .find(|condition| condition.type_ == type_ && condition.status == status)
            };
            let scheduled = find("PodScheduled", "True")
                .filter(|_| pod.metadata.deletion_timestamp.is_none())?;
            find("PodReadyToStartContainers", "False")?;
            Some(scheduled.last_transition_time.as_ref()?.0)
        };
        self.pods.values().flatten().filter_map(waits).min()
    }

    /// Whether the role's StatefulSet wants a pod of that number.
    pub fn wants(&self, role: Role, ordinal: u32) -> bool {
        i64::from(ordinal) < i64::from(self.counts(role, false).wanted)
    }

    /// What the templates keep where this is wanted.
    pub fn pinned(&self, wanted: Wanted) -> Pinned {
        let run_config = self.children.values().find_map(|live| live.run_config.as_ref());
        Pinned::from_live(run_config, &self.sets, wanted)
    }

    /// The coordinator pod: its UID, and its base URL once it has an address.
    pub fn coordinator(&self) -> Option<(String, Option<String>)> {
        let pod = self.pods.get(&Role::Coordinator)?.first()?;
        Some((pod.uid()?, url(pod, COORDINATOR_PORT)))
    }
}

/// The base URL of a pod that has an address.
fn url(pod: &Pod, port: u16) -> Option<String> {
    let address = pod.status.as_ref()?.pod_ip.as_ref().filter(|address| !address.is_empty())?;
    Some(if address.contains(':') {
        format!("http://[{address}]:{port}")
    } else {
        format!("http://{address}:{port}")
    })
}

#[cfg(test)]
mod tests;
