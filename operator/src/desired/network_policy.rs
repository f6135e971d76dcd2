//! NetworkPolicies of a job.
//!
//! ```text
//!  JOB        all pods   in:  pods of the job, the operator (coordinator), scrapers (metrics)
//!                        out: pods of the job, DNS
//!  JOB.ROLE   one role   out: servers that the spec names: bucket, hub, verifiers, …, in the
//!                             blocks of addresses that the operator's settings permit
//!  JOB.verifier          in:  the coordinator;  out: nothing. The policy of all pods excepts them
//! ```
//!
//! Policies are additive: further policies admit what templates and images need besides.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Capabilities;
use rljob_crds::names::{
    COORDINATOR_PORT, ENGINE_PORT, LABEL_JOB, LABEL_NAME, LABEL_ROLE, VERIFIER_PORT,
};
use rljob_crds::tracking::TrackingSpec;
use rljob_crds::workflow::WorkflowSpec;

use super::settings::{Scrapers, Settings};
use super::{Role, meta};
use crate::validate::{Job, ValidatedJob};

/// Label of a namespace with its name, which the API server sets.
const LABEL_NAMESPACE: &str = "kubernetes.io/metadata.name";
/// Addresses of the metadata services of clouds, and all other link-local ones.
const METADATA: [&str; 1] = ["169.254.0.0/16"];
/// The same of IPv6, with the services of AWS and Google Cloud.
const METADATA_6: [&str; 3] = ["fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128"];
const HTTPS: u16 = 443;

/// The policies of a job: for all of its pods, for roles with servers outside, then for verifier
/// pods.
pub(super) fn build_network_policies(
    job: &ValidatedJob,
    settings: &Settings,
) -> Vec<NetworkPolicy> {
    let outside = Role::of(&job.spec).filter_map(|role| role_policy(job, role, settings));
    let verifiers = job.spec.verifiers.is_some().then(|| verifier_policy(job));
    [job_policy(job, settings)].into_iter().chain(outside).chain(verifiers).collect()
}

/// Names of the policies of a job.
pub fn names(job: &Job) -> Vec<String> {
    let is_needed = |role: &Role| !Servers::of(&job.spec, *role).ports.is_empty();
    let roles = Role::of(&job.spec).filter(is_needed).map(|role| role_policy_name(job, role));
    let verifiers = job.spec.verifiers.as_ref().map(|_| role_policy_name(job, Role::Verifier));
    [job.name.clone()].into_iter().chain(roles).chain(verifiers).collect()
}

/// With a dot, which names of jobs lack: no other job has a policy of this name.
fn role_policy_name(job: &Job, role: Role) -> String {
    format!("{}.{}", job.name, role.as_str())
}

fn job_policy(job: &ValidatedJob, settings: &Settings) -> NetworkPolicy {
    let own_pods = NetworkPolicyPeer {
        pod_selector: Some(labelled(&[(LABEL_JOB, &job.name)])),
        ..NetworkPolicyPeer::default()
    };
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(labelled(&[(LABEL_NAMESPACE, &settings.namespace)])),
        pod_selector: Some(labelled(&[(LABEL_NAME, meta::OPERATOR_NAME)])),
        ..NetworkPolicyPeer::default()
    };
    let ingress = |from, ports| NetworkPolicyIngressRule { from: Some(vec![from]), ports };
    let mut admitted = vec![
        ingress(own_pods.clone(), None),
        ingress(operator, Some(vec![port(COORDINATOR_PORT, "TCP")])),
    ];
    admitted.extend(settings.scrapers.as_ref().map(|scrapers| {
        let ports = [COORDINATOR_PORT, ENGINE_PORT].map(|number| port(number, "TCP"));
        ingress(scrapers.peer(), Some(ports.to_vec()))
    }));
    let to_own_pods = NetworkPolicyEgressRule { to: Some(vec![own_pods]), ports: None };
    let to_dns =
        NetworkPolicyEgressRule { to: None, ports: Some(vec![port(53, "UDP"), port(53, "TCP")]) };
    let mut pods = labelled(&[(LABEL_JOB, &job.name)]);
    let except_verifiers = job.spec.verifiers.as_ref().map(|_| LabelSelectorRequirement {
        key: LABEL_ROLE.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![Role::Verifier.as_str().to_owned()]),
    });
    // An empty list, not an absent one, which would be satisfied by the list of an earlier spec.
    pods.match_expressions = Some(except_verifiers.into_iter().collect());
    NetworkPolicy {
        metadata: meta::child(job, job.name.clone(), None),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(admitted),
            egress: Some(vec![to_own_pods, to_dns]),
        }),
    }
}

/// The policy of a role that connects to servers outside the job.
fn role_policy(job: &ValidatedJob, role: Role, settings: &Settings) -> Option<NetworkPolicy> {
    let servers = Servers::of(&job.spec, role);
    let ports = servers.ports.iter().map(|number| port(*number, "TCP")).collect::<Vec<_>>();
    let rule = NetworkPolicyEgressRule { to: Some(servers.peers(settings)), ports: Some(ports) };
    (!servers.ports.is_empty()).then(|| NetworkPolicy {
        metadata: meta::child(job, role_policy_name(job, role), Some(role)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(meta::role_selector(job, role)),
            policy_types: Some(vec!["Egress".to_owned()]),
            ingress: None,
            egress: Some(vec![rule]),
        }),
    })
}

/// Verifier pods run programs that models wrote.
fn verifier_policy(job: &ValidatedJob) -> NetworkPolicy {
    let coordinator = NetworkPolicyPeer {
        pod_selector: Some(meta::role_selector(job, Role::Coordinator)),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: meta::child(job, role_policy_name(job, Role::Verifier), Some(Role::Verifier)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(meta::role_selector(job, Role::Verifier)),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![coordinator]),
                ports: Some(vec![port(VERIFIER_PORT, "TCP")]),
            }]),
            egress: None,
        }),
    }
}

/// Servers outside the job that a role connects to.
struct Servers {
    ports: BTreeSet<u16>,
    /// Whether a cloud's metadata service gives the role its identity for the bucket.
    uses_metadata: bool,
}

impl Servers {
    fn of(spec: &RLJobSpec, role: Role) -> Self {
        let mut ports = BTreeSet::new();
        if role == Role::Verifier {
            return Self { ports, uses_metadata: false };
        }
        let bucket = spec.storage.s3.as_ref().filter(|_| !role.is_engine());
        ports.extend(bucket.map(|bucket| bucket.endpoint.as_deref().map_or(HTTPS, port_of)));
        ports.extend(role.downloads_model(spec).then_some(HTTPS));
        if role == Role::Coordinator {
            let datasets = spec.dataset.sources().into_iter();
            ports.extend(datasets.filter_map(|source| source.hugging_face).map(|_| HTTPS));
            let verifiers = spec.rewards.iter().filter_map(|reward| {
                let http = reward.http.as_ref().map(|http| &http.url);
                http.or(reward.model.as_ref().and_then(|model| model.url.as_ref()))
            });
            ports.extend(verifiers.map(|url| port_of(url)));
            let teacher = spec.algorithm.capabilities().and_then(Capabilities::served_teacher);
            let server = teacher.and_then(|teacher| teacher.server);
            ports.extend(server.map(|server| port_of(&server.url)));
            let workflow = spec.rollout.workflow.iter();
            ports.extend(workflow.flat_map(WorkflowSpec::urls).map(port_of));
            ports.extend(spec.tracking.iter().flat_map(TrackingSpec::urls).map(port_of));
        }
        let uses_metadata = bucket.is_some_and(|bucket| bucket.credentials_secret_ref.is_none());
        if uses_metadata {
            ports.extend([80, HTTPS]);
        }
        Self { ports, uses_metadata }
    }

    /// The blocks of the settings, or every address: policies have no names of servers. Pods of the
    /// cluster are no addresses to some network plugins, so that they are named as well.
    fn peers(&self, settings: &Settings) -> Vec<NetworkPolicyPeer> {
        if !settings.egress_cidrs.is_empty() {
            return settings.egress_cidrs.iter().map(|cidr| addresses(cidr, &[])).collect();
        }
        let all = |cidr, metadata| addresses(cidr, if self.uses_metadata { &[] } else { metadata });
        let pods = NetworkPolicyPeer {
            namespace_selector: Some(LabelSelector::default()),
            ..NetworkPolicyPeer::default()
        };
        vec![all("0.0.0.0/0", &METADATA), all("::/0", &METADATA_6), pods]
    }
}

fn addresses(cidr: &str, except: &[&str]) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_owned(),
            // An empty list, not an absent one, which an earlier list would satisfy.
            except: Some(except.iter().map(|cidr| (*cidr).to_owned()).collect()),
        }),
        ..NetworkPolicyPeer::default()
    }
}

impl Scrapers {
    fn peer(&self) -> NetworkPolicyPeer {
        let selector = |labels: &BTreeMap<String, String>| LabelSelector {
            match_labels: Some(labels.clone()),
            ..LabelSelector::default()
        };
        NetworkPolicyPeer {
            namespace_selector: Some(selector(&self.namespace)),
            pod_selector: (!self.pods.is_empty()).then(|| selector(&self.pods)),
            ..NetworkPolicyPeer::default()
        }
    }
}

fn labelled(labels: &[(&str, &str)]) -> LabelSelector {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    LabelSelector { match_labels: Some(labels.collect()), ..LabelSelector::default() }
}

fn port(number: u16, protocol: &str) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(number))),
        protocol: Some(protocol.to_owned()),
        ..NetworkPolicyPort::default()
    }
}

/// Port of a URL, which the CRD's pattern admitted.
fn port_of(url: &str) -> u16 {
    let default = if url.starts_with("http://") { 80 } else { HTTPS };
    let parsed = reqwest::Url::parse(url).ok();
    parsed.and_then(|url| url.port_or_known_default()).unwrap_or(default)
}

#[cfg(test)]
mod tests;
