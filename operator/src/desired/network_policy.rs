//! NetworkPolicy of a job: pods accept connections from each other, and the coordinator from the
//! operator. Scraping metrics needs an additional policy; policies are additive.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rljob_crds::names::{COORDINATOR_PORT, LABEL_JOB, LABEL_NAME};

use super::meta;
use crate::validate::ValidatedJob;

pub(super) fn build_network_policy(job: &ValidatedJob) -> NetworkPolicy {
    let labelled = |key: &str, value: &str| LabelSelector {
        match_labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        ..LabelSelector::default()
    };
    let own_pods = NetworkPolicyPeer {
        pod_selector: Some(labelled(LABEL_JOB, &job.name)),
        ..NetworkPolicyPeer::default()
    };
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        pod_selector: Some(labelled(LABEL_NAME, meta::OPERATOR_NAME)),
        ..NetworkPolicyPeer::default()
    };
    let coordinator = NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(COORDINATOR_PORT))),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicy {
        metadata: meta::child(job, job.name.clone(), None),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(labelled(LABEL_JOB, &job.name)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { from: Some(vec![own_pods]), ports: None },
                NetworkPolicyIngressRule {
                    from: Some(vec![operator]),
                    ports: Some(vec![coordinator]),
                },
            ]),
            ..NetworkPolicySpec::default()
        }),
    }
}
