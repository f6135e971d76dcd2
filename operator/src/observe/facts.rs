//! The observed state: objects, the coordinator's report and the memory of earlier passes → facts.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use rljob_crds::names::{
    CONDITION_SUSPENDED, ENGINE_PORT, REASON_CHILD_REJECTED, REASON_INVALID_SPEC,
    REASON_PODS_CANNOT_START,
};
use rljob_crds::roles::InferenceSpec;
use rljob_crds::status::{Incident, RLJobStatus};
use rljob_protocol::desired::{EngineEndpoint, SupervisorIdentity, VerifierEndpoint};
use rljob_protocol::status::{CoordinatorStatus, EngineState};

use super::objects::{CoordinatorPod, Objects, ObservedChildren, ObservedSets, address, url};
use super::queue::ObservedQueue;
use super::warnings;
use crate::cache::Pod;
use crate::children::ChildName;
use crate::decide::{Exit, Facts, Obstacle, Roles, Silence, Waiting, assign_epoch};
use crate::desired::{Role, pin};
use crate::pods::{self, PodFacts, PodPlan, Removal, SeenPod};
use crate::status;
use crate::validate::{InvalidSpec, Job};

/// The state of a job at the start of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    pub facts: Facts,
    /// The job's own children, except the Secret.
    pub children: ObservedChildren,
    /// The StatefulSets among them.
    pub sets: ObservedSets,
    pub pods: Vec<PodFacts>,
    /// Actions that the pods' states require.
    pub pod_plan: PodPlan,
    pub coordinator: Option<CoordinatorPod>,
    /// Children that the operator has no permission to get. They are not applied.
    pub unreadable: Vec<ChildName>,
    /// Start of the longest wait of a scheduled pod for its volumes.
    pub unmounted_since: Option<Timestamp>,
    /// The job's place in a queue.
    pub queue: ObservedQueue,
    /// Time at which the warning events of an object that waits are read, again.
    pub recheck: Option<Timestamp>,
    /// Time of this operator's last write of the job's status.
    pub last_write: Option<Timestamp>,
}

/// The memory of earlier passes, the coordinator's last report, and the queue.
#[derive(Default)]
pub(super) struct Remembered {
    pub(super) queue: ObservedQueue,
    pub(super) report: Option<CoordinatorStatus>,
    pub(super) was_asked: bool,
    pub(super) silence: Option<Silence>,
    pub(super) unsupported: Option<String>,
    pub(super) rejection: Option<String>,
    /// Children that the operator has no permission to get, with the API server's message.
    pub(super) unreadable: Vec<(ChildName, String)>,
    /// The causes in the newest warning event of each object that has no other cause.
    pub(super) warnings: Vec<Waiting>,
    pub(super) pods: Vec<SeenPod>,
    pub(super) last_write: Option<Timestamp>,
}

impl Objects {
    pub(super) fn into_observed(
        self,
        job: &Job,
        old: &RLJobStatus,
        invalid: Option<&InvalidSpec>,
        remembered: Remembered,
        now: Timestamp,
    ) -> Observed {
        let Remembered { report, rejection, unreadable, warnings, last_write, queue, .. } =
            remembered;
        let (recorded, coordinator) = (status::recorded(old), self.coordinator());
        let identity = coordinator.as_ref().map(|pod| pod.uid.clone());
        let has_address = coordinator.as_ref().is_some_and(|pod| pod.url.is_some());
        let reported_epoch = report.as_ref().and_then(|report| report.epoch);
        let epoch = assign_epoch(&recorded.epoch, identity.as_deref(), reported_epoch);
        let pods = self.pod_facts();
        let acting = report.as_ref().filter(|report| report.epoch == Some(epoch.number));
        let engines = reported_engines(acting);
        let pods_per_engine =
            |role: Role| role.engines(&job.spec).map(InferenceSpec::pods_per_engine);
        let pod_plan = pods::plan(&pods, pods_per_engine, &engines, &job.spec.failure_policy, now);
        let vanished =
            pods::vanished(&remembered.pods, &pods, |role, index| self.wants(role, index));
        let waiting = self.waiting(warnings);
        let rejection = rejection.or_else(|| Some(unreadable.first()?.1.clone()));
        let obstacle = obstacle(invalid, &self, rejection, waiting.first());
        let recheck = self.recheck(job, old, now);
        let facts = Facts {
            suspend: job.spec.suspend,
            queue: queue.facts.clone(),
            generation: job.generation,
            recorded,
            epoch,
            incidents: incidents(&pods, &pod_plan.removals, &vanished, acting),
            coordinator: report,
            coordinator_identity: identity,
            coordinator_unasked: !remembered.was_asked && has_address,
            silence: remembered.silence,
            directory_in_use: self.directory_in_use(),
            waiting,
            exit: pods::newest_exit(&pods),
            exits: pods::failures(&pods),
            exits_under_rules: exits_under_rules(&pods, old, job),
            rules_digest: rules_digest(job),
            unsupported: remembered.unsupported,
            obstacle,
            engine_up_since: engine_up_since(&pods, job.spec.inference.pods_per_engine()),
            engines: self.engines(job, Role::Inference, &pod_plan),
            evaluation_engines: self.engines(job, Role::Evaluation, &pod_plan),
            reward_engines: self.engines(job, Role::Reward, &pod_plan),
            teacher_engines: self.engines(job, Role::Teacher, &pod_plan),
            verifiers: self.verifiers(),
            supervisors: supervisors(&pods),
            roles: self.roles(is_suspended(old), pods_per_engine),
        };
        Observed {
            facts,
            queue,
            unmounted_since: self.unmounted_since(),
            recheck,
            children: self.children,
            sets: self.sets,
            pods,
            pod_plan,
            coordinator,
            unreadable: unreadable.into_iter().map(|(name, _)| name).collect(),
            last_write,
        }
    }

    /// Time at which the warning events of an object that waits are read, again.
    fn recheck(&self, job: &Job, old: &RLJobStatus, now: Timestamp) -> Option<Timestamp> {
        self.unexplained(job).iter().map(|object| warnings::recheck(object, old, now)).min()
    }

    fn roles(&self, was_suspended: bool, pods_per_engine: impl Fn(Role) -> Option<u32>) -> Roles {
        let counts = |role| self.counts(role, was_suspended);
        let engines = |role| match pods_per_engine(role) {
            Some(size) => self.in_engines(role, counts(role), size),
            None => counts(role),
        };
        Roles {
            inference: engines(Role::Inference),
            evaluation: engines(Role::Evaluation),
            reward: engines(Role::Reward),
            teacher: engines(Role::Teacher),
            coordinator: counts(Role::Coordinator),
            trainer: counts(Role::Trainer),
            group: counts(Role::Group),
            verifier: counts(Role::Verifier),
        }
    }

    /// The engines of a role that exist and that the spec wants, by their first pods. An engine
    /// leaves the list before its pods are deleted.
    fn engines(&self, job: &Job, role: Role, plan: &PodPlan) -> Vec<EngineEndpoint> {
        let Some(engines) = role.engines(&job.spec) else { return Vec::new() };
        let num_pods = i64::from(engines.pods());
        let is_wanted = |pod: &Pod| {
            i64::from(pods::ordinal(pod)) < num_pods
                && pods::serves(pods::ordinal(pod), engines.pods_per_engine())
                && !plan.replaces(&pod.uid().unwrap_or_default())
        };
        // By address: DNS caches may return the address of the previous pod of that name.
        let endpoint = |pod: &Arc<Pod>| {
            let (name, url) = (pod.name_any(), url(pod, ENGINE_PORT)?);
            Some(EngineEndpoint { name, url, uid: pod.uid() })
        };
        let pods = self.pods.get(&role).into_iter().flatten();
        pods.filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_wanted(pod))
            .filter_map(endpoint)
            .collect()
    }

    /// The verifier pods that serve, except those that will be deleted because fewer are wanted.
    fn verifiers(&self) -> Vec<VerifierEndpoint> {
        let role = Role::Verifier;
        let serves = |pod: &&Arc<Pod>| {
            pod.metadata.deletion_timestamp.is_none()
                && pods::is_up(pod)
                && self.wants(role, pods::ordinal(pod))
        };
        let endpoint = |pod: &Arc<Pod>| {
            let (name, uid) = (pod.name_any(), pod.uid()?);
            Some(VerifierEndpoint { name, uid, address: address(pod, role.port())? })
        };
        let pods = self.pods.get(&role).into_iter().flatten();
        pods.filter(serves).filter_map(endpoint).collect()
    }
}

/// Incidents of pods, and faults of their GPUs.
fn incidents(
    pods: &[PodFacts],
    removals: &[Removal],
    vanished: &[SeenPod],
    report: Option<&CoordinatorStatus>,
) -> Vec<Incident> {
    let mut incidents = pods::incidents(pods, removals, vanished);
    let supervisors = report.iter().flat_map(|report| report.all_supervisors());
    incidents.extend(pods::gpu_faults(pods, supervisors, &incidents));
    incidents
}

/// All engines in the report of a coordinator.
fn reported_engines(report: Option<&CoordinatorStatus>) -> Vec<EngineState> {
    report.iter().flat_map(|report| report.all_engines()).cloned().collect()
}

/// Digest of the failure rules of the spec; none without rules.
fn rules_digest(job: &Job) -> Option<String> {
    let rules = &job.spec.failure_policy.rules;
    let json = serde_json::to_string(rules).ok()?;
    (!rules.is_empty()).then(|| pin::digest(&json))
}

/// Failures since the job's rules are in force; none before the status records the rules.
fn exits_under_rules(pods: &[PodFacts], old: &RLJobStatus, job: &Job) -> Vec<Exit> {
    let digest = rules_digest(job);
    let applied = old.failure_rules.as_ref();
    let applied = applied.filter(|applied| Some(&applied.sha256) == digest.as_ref());
    applied.map_or_else(Vec::new, |applied| pods::failures_since(pods, applied.since.0))
}

/// The trainer pods. A terminating one is listed until it is deleted: its learners may still write
/// a checkpoint.
fn supervisors(pods: &[PodFacts]) -> Vec<SupervisorIdentity> {
    let trainers = pods.iter().filter(|pod| matches!(pod.role, Role::Trainer | Role::Group));
    trainers
        .map(|pod| SupervisorIdentity { name: pod.name.clone(), uid: pod.uid.clone() })
        .collect()
}

/// Since when an engine serves: its first pod is up once the others have joined it.
fn engine_up_since(pods: &[PodFacts], pods_per_engine: u32) -> Option<Timestamp> {
    let engines = pods.iter().filter(|pod| {
        pod.role == Role::Inference
            && pod.deletion.is_none()
            && pods::serves(pod.ordinal, pods_per_engine)
    });
    engines.filter_map(|pod| pod.up_since).min()
}

/// The first obstacle, in the order in which the user must remove them.
fn obstacle(
    invalid: Option<&InvalidSpec>,
    objects: &Objects,
    rejection: Option<String>,
    waiting: Option<&Waiting>,
) -> Option<Obstacle> {
    let invalid = invalid
        .map(|invalid| Obstacle { reason: REASON_INVALID_SPEC, message: invalid.to_string() });
    let rejected = || rejection.map(|message| Obstacle { reason: REASON_CHILD_REJECTED, message });
    let waiting = || {
        let message = waiting.filter(|waiting| waiting.needs_user)?.message.clone();
        Some(Obstacle { reason: REASON_PODS_CANNOT_START, message })
    };
    invalid
        .or_else(|| Obstacle::foreign_objects(&objects.foreign))
        .or_else(|| Obstacle::leftovers(&objects.leftovers))
        .or_else(rejected)
        .or_else(waiting)
}

fn is_suspended(status: &RLJobStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == CONDITION_SUSPENDED && condition.status == "True")
}
