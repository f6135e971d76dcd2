//! Gang schedulers: which ones an operator knows, and their PodGroup APIs.

use std::fmt;
use std::str::FromStr;

use kube::core::{ApiResource, GroupVersionKind};
use rljob_crds::gang::GangScheduler;
use serde_json::Value;

/// A set of gang schedulers, written as their names separated by commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GangSchedulers {
    native: bool,
    coscheduling: bool,
    volcano: bool,
}

impl GangSchedulers {
    /// Every scheduler.
    pub const ALL: Self = Self { native: true, coscheduling: true, volcano: true };

    pub fn contains(self, scheduler: GangScheduler) -> bool {
        match scheduler {
            GangScheduler::Native => self.native,
            GangScheduler::Coscheduling => self.coscheduling,
            GangScheduler::Volcano => self.volcano,
        }
    }

    pub fn iter(self) -> impl Iterator<Item = GangScheduler> {
        GangScheduler::ALL.into_iter().filter(move |scheduler| self.contains(*scheduler))
    }

    fn insert(&mut self, scheduler: GangScheduler) {
        match scheduler {
            GangScheduler::Native => self.native = true,
            GangScheduler::Coscheduling => self.coscheduling = true,
            GangScheduler::Volcano => self.volcano = true,
        }
    }
}

impl FromStr for GangSchedulers {
    type Err = UnknownScheduler;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::default();
        for name in text.split(',') {
            let mut known = GangScheduler::ALL.into_iter();
            let scheduler = known.find(|scheduler| scheduler.name() == name);
            set.insert(scheduler.ok_or_else(|| UnknownScheduler(name.to_owned()))?);
        }
        Ok(set)
    }
}

impl fmt::Display for GangSchedulers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(GangScheduler::name).collect::<Vec<_>>().join(","))
    }
}

/// A name of no gang scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no gang scheduler; use native, coscheduling or volcano, separated by commas")]
pub struct UnknownScheduler(String);

/// API of the scheduler's PodGroups.
pub fn pod_groups(scheduler: GangScheduler) -> ApiResource {
    let (group, version) = match scheduler {
        GangScheduler::Native => ("scheduling.k8s.io", "v1beta1"),
        GangScheduler::Coscheduling => ("scheduling.x-k8s.io", "v1alpha1"),
        GangScheduler::Volcano => ("scheduling.volcano.sh", "v1beta1"),
    };
    ApiResource {
        plural: "podgroups".to_owned(),
        ..ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup"))
    }
}

/// Message about an API server without these PodGroups.
pub fn unserved(scheduler: GangScheduler) -> String {
    let remedy = match scheduler {
        GangScheduler::Native => {
            "enable the feature gate GenericWorkload of the cluster, and this API of its API server"
        }
        GangScheduler::Coscheduling => "install the CRDs of scheduler-plugins",
        GangScheduler::Volcano => "install Volcano",
    };
    let api = pod_groups(scheduler).api_version;
    format!("it has no PodGroups of {api}; {remedy}, or remove spec.scheduling.gang")
}

/// Message about constraints of a desired PodGroup that the stored one lacks: an API server drops
/// fields of features that are disabled.
pub fn dropped(desired: &Value, stored: &Value) -> Option<String> {
    let constraints = "/spec/schedulingConstraints";
    let is_dropped =
        desired.pointer(constraints).is_some() && stored.pointer(constraints).is_none();
    is_dropped.then(|| {
        "it has no topology constraints of PodGroups; enable the feature gate \
            TopologyAwareWorkloadScheduling of the cluster, or remove \
            spec.scheduling.gang.native.topologyKey"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn constraints_that_an_api_server_drops_are_named() {
        let (with, without) = (
            json!({"spec": {"schedulingConstraints": {"topology": [{"key": "rack"}]}}}),
            json!({"spec": {"schedulingPolicy": {}}}),
        );
        assert_eq!(dropped(&with, &with), None);
        assert_eq!(dropped(&without, &without), None);
        let message = dropped(&with, &without).unwrap();
        assert!(message.contains("TopologyAwareWorkloadScheduling"), "{message}");
    }

    #[test]
    fn a_set_is_read_from_names() {
        let of = |text: &str| text.parse::<GangSchedulers>();
        assert_eq!(of("native,coscheduling,volcano"), Ok(GangSchedulers::ALL));
        let some = of("volcano,native").unwrap();
        assert_eq!(some.to_string(), "native,volcano");
        assert!(!some.contains(GangScheduler::Coscheduling));
        assert_eq!(
            of("native,kai").unwrap_err().to_string(),
            "`kai` is no gang scheduler; use native, coscheduling or volcano, separated by commas"
        );
    }
}
