//! Names, labels, owners and addresses of a job's objects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Resource;
use rljob_crds::failure_policy::FailureRole;
use rljob_crds::roles::InferenceSpec;
use rljob_crds::{EnginePurpose, RLJob, RLJobSpec, names};

use crate::validate::{Job, ValidatedJob};

/// Name of the operator's objects, and its pods' `app.kubernetes.io/name`.
pub const OPERATOR_NAME: &str = "rljob-operator";
/// Namespace of the operator in install.yaml.
pub const OPERATOR_NAMESPACE: &str = "rljob-system";

/// A role of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Inference,
    /// Engines that only evaluate.
    Evaluation,
    /// Engines that serve the reward model.
    Reward,
    /// Engines that serve the teacher.
    Teacher,
    Coordinator,
    Trainer,
    /// Trainer pods of the group of `trainer.groups` that holds the algorithm's frozen model.
    Group,
    Verifier,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 8] = [
        Self::Inference,
        Self::Evaluation,
        Self::Reward,
        Self::Teacher,
        Self::Coordinator,
        Self::Trainer,
        Self::Group,
        Self::Verifier,
    ];

    /// The roles of a job.
    pub fn of(spec: &RLJobSpec) -> impl Iterator<Item = Self> + use<> {
        let has = |purpose| spec.engines(purpose).is_some();
        let evaluates = has(EnginePurpose::Evaluation);
        let (scores, teaches) = (has(EnginePurpose::Reward), has(EnginePurpose::Teacher));
        let (has_group, has_verifiers) = (spec.frozen_group().is_some(), spec.verifiers.is_some());
        Self::ALL.into_iter().filter(move |role| match role {
            Self::Evaluation => evaluates,
            Self::Reward => scores,
            Self::Teacher => teaches,
            Self::Group => has_group,
            Self::Verifier => has_verifiers,
            Self::Inference | Self::Coordinator | Self::Trainer => true,
        })
    }

    /// Whether the spec has pods of the role. A role without them has a StatefulSet of size 0,
    /// which keeps its template for a later size, and no objects that select its pods.
    pub fn has_pods(self, spec: &RLJobSpec) -> bool {
        match self {
            Self::Inference => spec.inference.replicas > 0,
            Self::Trainer => spec.trainers() > 0,
            Self::Evaluation
            | Self::Reward
            | Self::Teacher
            | Self::Coordinator
            | Self::Group
            | Self::Verifier => true,
        }
    }

    /// The roles of a job that have pods.
    pub fn with_pods(spec: &RLJobSpec) -> impl Iterator<Item = Self> {
        Self::of(spec).filter(|role| role.has_pods(spec))
    }

    /// What the role's pods do, if they are engines.
    pub fn purpose(self) -> Option<EnginePurpose> {
        match self {
            Self::Inference => Some(EnginePurpose::Rollouts),
            Self::Evaluation => Some(EnginePurpose::Evaluation),
            Self::Reward => Some(EnginePurpose::Reward),
            Self::Teacher => Some(EnginePurpose::Teacher),
            Self::Coordinator | Self::Trainer | Self::Group | Self::Verifier => None,
        }
    }

    /// Engines of the role.
    pub fn engines(self, spec: &RLJobSpec) -> Option<&InferenceSpec> {
        spec.engines(self.purpose()?)
    }

    /// Whether the role's pods are engines.
    pub fn is_engine(self) -> bool {
        self.purpose().is_some()
    }

    /// Whether the role's pods download the model of the Hugging Face Hub: the coordinator does,
    /// and in a run in a bucket every pod that reads it.
    pub fn downloads_model(self, spec: &RLJobSpec) -> bool {
        let reads_model = !matches!(self, Self::Reward | Self::Teacher | Self::Verifier);
        let is_needed = self == Self::Coordinator || (spec.storage.s3.is_some() && reads_model);
        is_needed && spec.model.hugging_face.is_some()
    }

    /// Name of the role in labels and, except of a group, in object names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Evaluation => "evaluation",
            Self::Reward => "reward",
            Self::Teacher => "teacher",
            Self::Coordinator => "coordinator",
            Self::Trainer => "trainer",
            Self::Group => "trainer-group",
            Self::Verifier => "verifier",
        }
    }

    /// Name of the main container of the role's pods.
    pub fn container(self) -> &'static str {
        match self {
            Self::Inference | Self::Evaluation | Self::Reward | Self::Teacher => {
                names::CONTAINER_ENGINE
            }
            Self::Coordinator => names::CONTAINER_COORDINATOR,
            Self::Trainer | Self::Group => names::CONTAINER_TRAINER,
            Self::Verifier => names::CONTAINER_REWARDS,
        }
    }

    /// Name of that port.
    pub fn port_name(self) -> &'static str {
        if self == Self::Verifier { "runner" } else { "http" }
    }

    /// The role with this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }

    /// Port that the role's pods serve.
    pub fn port(self) -> u16 {
        match self {
            Self::Inference | Self::Evaluation | Self::Reward | Self::Teacher => names::ENGINE_PORT,
            Self::Coordinator => names::COORDINATOR_PORT,
            Self::Trainer | Self::Group => names::SUPERVISOR_PORT,
            Self::Verifier => names::VERIFIER_PORT,
        }
    }
}

impl From<Role> for FailureRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Inference => Self::Inference,
            Role::Evaluation => Self::Evaluation,
            Role::Reward => Self::Reward,
            Role::Teacher => Self::Teacher,
            Role::Coordinator => Self::Coordinator,
            Role::Trainer | Role::Group => Self::Trainer,
            Role::Verifier => Self::Verifier,
        }
    }
}

/// Name of a role's StatefulSet and Service.
pub fn role_name(job: &Job, role: Role) -> String {
    match job.spec.frozen_group().filter(|_| role == Role::Group) {
        Some(group) => format!("{}-{}-{}", job.name, Role::Trainer.as_str(), group.name),
        None => format!("{}-{}", job.name, role.as_str()),
    }
}

/// Name of the ConfigMap with the run configuration.
pub fn config_map_name(job: &Job) -> String {
    format!("{}-run", job.name)
}

/// Name of the Secret with the tokens. It contains a part of the UID, because the operator cannot
/// read Secrets and could not detect a foreign Secret of the same name.
pub fn secret_name(job: &ValidatedJob) -> String {
    match job.uid.split('-').next() {
        Some(part) if !part.is_empty() => format!("{}-tokens-{part}", job.name),
        _ => format!("{}-tokens", job.name),
    }
}

/// Cluster DNS name of a pod.
pub fn pod_host(namespace: &str, pod: &str, service: &str) -> String {
    format!("{pod}.{}", service_host(namespace, service))
}

/// Cluster DNS name of a Service.
pub fn service_host(namespace: &str, service: &str) -> String {
    format!("{service}.{namespace}.svc")
}

/// Base URL of the coordinator as pods see it.
pub fn coordinator_url(job: &ValidatedJob) -> String {
    let name = role_name(job, Role::Coordinator);
    format!(
        "https://{}:{}",
        pod_host(&job.namespace, &format!("{name}-0"), &name),
        names::COORDINATOR_PORT
    )
}

/// Run directory of a job of this namespace, as pods see it.
pub fn run_directory(job: &ValidatedJob, name: &str) -> PathBuf {
    [names::STORAGE_MOUNT, job.namespace.as_str(), name].iter().collect()
}

/// Labels that select a role's pods.
pub fn role_labels(job: &Job, role: Role) -> BTreeMap<String, String> {
    labels(&[(names::LABEL_JOB, &job.name), (names::LABEL_ROLE, role.as_str())])
}

/// Selects a role's pods.
pub fn role_selector(job: &ValidatedJob, role: Role) -> LabelSelector {
    LabelSelector { match_labels: Some(role_labels(job, role)), ..LabelSelector::default() }
}

/// The selector of [`role_selector`] as text.
pub fn role_selector_text(job: &Job, role: Role) -> String {
    role_labels(job, role)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// Metadata of a child; `role` is `None` for children of the whole job.
pub fn child(job: &ValidatedJob, name: String, role: Option<Role>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(job.namespace.clone()),
        labels: Some(all_labels(job, role)),
        owner_references: owner(job).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Labels of a child; independent of the attempt and of the operator's version.
pub fn all_labels(job: &ValidatedJob, role: Option<Role>) -> BTreeMap<String, String> {
    let mut all = labels(&[
        (names::LABEL_JOB, &job.name),
        (names::LABEL_NAME, names::APP),
        (names::LABEL_INSTANCE, &job.name),
        (names::LABEL_MANAGED_BY, OPERATOR_NAME),
    ]);
    if let Some(role) = role {
        all.append(&mut labels(&[
            (names::LABEL_ROLE, role.as_str()),
            (names::LABEL_COMPONENT, role.as_str()),
        ]));
    }
    all
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Owner reference of the RLJob; `None` without a cluster, as in `rljob render`.
fn owner(job: &ValidatedJob) -> Option<OwnerReference> {
    (!job.uid.is_empty()).then(|| OwnerReference {
        api_version: RLJob::api_version(&()).into_owned(),
        kind: RLJob::kind(&()).into_owned(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}
