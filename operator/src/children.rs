//! Children of a job as untyped objects: kind, name and JSON. [`crate::desired`] builds the typed
//! objects; later steps handle all kinds alike.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::DynamicObject;
use kube::core::{ApiResource, DynamicResourceScope, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use rljob_crds::gang::GangScheduler;
use rljob_crds::names::LABEL_ROLE;
use serde::Serialize;
use serde_json::Value;

use crate::desired::{Resources, Role, meta, network_policy};
use crate::validate::Job;
use crate::{gang, queue};

/// Kind of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Tokens. Never read.
    Secret,
    /// Run configuration.
    ConfigMap,
    /// Ingress of the pods.
    NetworkPolicy,
    /// Limit of engines drained at once.
    PodDisruptionBudget,
    /// DNS name of a role.
    Service,
    /// Pods of a role.
    StatefulSet,
    /// Place of a job in a queue of Kueue. Exists for queued jobs only.
    Workload,
    /// Gang of a job for this scheduler. Exists while a job with a gang has pods.
    PodGroup(GangScheduler),
}

impl Kind {
    /// Kinds that are always watched: all except Secrets, Workloads of Kueue, and PodGroups.
    pub const WATCHED: [Self; 5] = [
        Self::ConfigMap,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::Service,
        Self::StatefulSet,
    ];

    /// Whether a pass needs to know the objects of this kind: it reads their content.
    pub fn is_essential(self) -> bool {
        matches!(self, Self::ConfigMap | Self::StatefulSet)
    }

    /// Whether pods may be created without it.
    pub fn is_independent(self) -> bool {
        self == Self::PodDisruptionBudget
    }

    /// API resource of the kind.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            Self::Workload => kueue_resource("Workload", "workloads"),
            Self::PodGroup(scheduler) => gang::pod_groups(scheduler),
        }
    }

    /// API of this kind in a namespace, or in all namespaces.
    pub fn api(self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        objects(client, namespace, &self.resource())
    }
}

/// A resource of Kueue.
pub fn kueue_resource(kind: &str, plural: &str) -> ApiResource {
    let (group, version) = (queue::API_GROUP, queue::API_VERSION);
    ApiResource {
        plural: plural.to_owned(),
        ..ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }
}

/// API of a resource in a namespace, or in all namespaces. `K` selects the parts of the objects to
/// read.
pub fn objects<K>(client: &Client, namespace: Option<&str>, resource: &ApiResource) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    namespace.map_or_else(
        || Api::all_with(client.clone(), resource),
        |namespace| Api::namespaced_with(client.clone(), namespace, resource),
    )
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PodGroup(_) => f.write_str("PodGroup"),
            // Variants are named like the kinds.
            kind => write!(f, "{kind:?}"),
        }
    }
}

/// Kind and name of a child.
pub type ChildName = (Kind, String);

/// A desired child.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    pub name: ChildName,
    pub object: Value,
}

impl Child {
    /// Position in the order of applies: objects that pods depend on, then StatefulSets, and the
    /// coordinator's StatefulSet last. If that one requests a pod, all other children were rendered
    /// from the same spec ([`crate::desired::pin`]).
    pub fn apply_order(&self) -> usize {
        let is_coordinators = || {
            self.object
                .pointer("/metadata/labels")
                .is_some_and(|labels| labels[LABEL_ROLE] == Role::Coordinator.as_str())
        };
        match self.name.0 {
            Kind::StatefulSet if is_coordinators() => 2,
            Kind::StatefulSet => 1,
            _ => 0,
        }
    }
}

/// All children in the order of applies: objects that pods depend on first, StatefulSets last.
pub fn children(resources: &Resources) -> Vec<Child> {
    let Resources {
        config_map,
        secret,
        network_policies,
        disruption_budgets,
        services,
        stateful_sets,
    } = resources;
    let mut children = vec![child(Kind::Secret, secret), child(Kind::ConfigMap, config_map)];
    children.extend(network_policies.iter().map(|policy| child(Kind::NetworkPolicy, policy)));
    let budgets = disruption_budgets.iter();
    children.extend(budgets.map(|budget| child(Kind::PodDisruptionBudget, budget)));
    children.extend(services.iter().map(|service| child(Kind::Service, service)));
    children.extend(stateful_sets.iter().map(|set| {
        let name = set.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        Child { name: (Kind::StatefulSet, name.to_owned()), object: set.clone() }
    }));
    children
}

fn child<K: Resource + Serialize>(kind: Kind, object: &K) -> Child {
    // Serialization of plain data with string keys cannot fail.
    Child {
        name: (kind, object.name_any()),
        object: serde_json::to_value(object).unwrap_or_default(),
    }
}

/// Names of the children that are read: all except the Secret.
pub fn readable(job: &Job) -> Vec<ChildName> {
    let mut names = vec![(Kind::ConfigMap, meta::config_map_name(job))];
    names.extend(network_policy::names(job).into_iter().map(|name| (Kind::NetworkPolicy, name)));
    let name = |kind: Kind| move |role: Role| (kind, meta::role_name(job, role));
    let engines = Role::with_pods(&job.spec).filter(|role| role.is_engine());
    names.extend(engines.map(name(Kind::PodDisruptionBudget)));
    names.extend(Role::with_pods(&job.spec).map(name(Kind::Service)));
    names.extend(Role::of(&job.spec).map(name(Kind::StatefulSet)));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::WantedRoles;
    use crate::desired::tokens::TokenKey;
    use crate::desired::{Pinned, Settings, Tokens, build};
    use crate::validate::test_support::validated;

    #[test]
    fn all_children_except_the_secret_are_readable() {
        let job = validated();
        let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
        let resources = build(
            &job,
            WantedRoles::Everything,
            &Settings::new("rljob:7"),
            &tokens,
            &Pinned::default(),
        );
        let mut made: Vec<ChildName> =
            children(&resources).into_iter().map(|child| child.name).collect();
        assert_eq!(made.remove(0).0, Kind::Secret);
        assert_eq!(made, readable(&job));
    }
}
