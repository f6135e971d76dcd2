//! Queueing by Kueue, as an external framework: one Workload per job with a pod set per role. Pure.
//!
//! ```text
//!  label queue-name ─▶ Workload ([`build`]) ─▶ Kueue reserves quota
//!                                                  │
//!  facts ([`admission`]): held, or admitted ◀──────┘
//!    held      the job drains, has no pods and waits (decision `Queued`)
//!    admitted  the job starts; flavors place its pods ([`placement`])
//!  plan ([`plan`]): create, update or delete the Workload, or report in its status
//! ```
//!
//! The operator never changes the RLJob's spec or labels. Nothing here applies to a job without the
//! label, or to an operator without `--kueue`. The Workload has no finalizer: a deleted job needs
//! no operator.

use rljob_crds::names::{GROUP, LABEL_QUEUE};
pub use rljob_crds::topology::topology_annotation;
use sha2::{Digest, Sha256};

use crate::validate::Job;

pub mod admission;
pub mod build;
pub mod placement;
pub mod plan;
pub mod workload;

/// Kueue's API group.
pub const API_GROUP: &str = "kueue.x-k8s.io";
/// Version of Kueue's API: served since Kueue 0.15.
pub const API_VERSION: &str = "v1beta2";
/// Label of an RLJob: the WorkloadPriorityClass.
pub const LABEL_PRIORITY: &str = "kueue.x-k8s.io/priority-class";
/// Label of a Workload: UID of its job.
pub const LABEL_JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// Label of a pod: its pod set.
pub const LABEL_POD_SET: &str = "kueue.x-k8s.io/podset";
/// Annotation of a pod: its Workload, if Kueue assigns its node.
pub const ANNOTATION_WORKLOAD: &str = "kueue.x-k8s.io/workload";
/// Scheduling gate of a pod until Kueue has assigned its node.
pub const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";

/// Prefix of the names of Workloads: the kind of the owner, as Kueue's own integrations have.
pub const NAME_PREFIX: &str = "rljob-";
/// Longest name of a Workload: it is used as a label's value.
const NAME_LIMIT: usize = 63;
/// Hexadecimal digits of the hash in a name.
const HASH_DIGITS: usize = 5;

/// Name of the job's LocalQueue.
pub fn queue_name(job: &Job) -> Option<&str> {
    label(job, LABEL_QUEUE)
}

/// Name of the job's WorkloadPriorityClass.
pub fn priority_class(job: &Job) -> Option<&str> {
    label(job, LABEL_PRIORITY)
}

fn label<'a>(job: &'a Job, name: &str) -> Option<&'a str> {
    job.labels.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

/// Name of the job's Workload: kind, name and a hash of the UID.
pub fn workload_name(job: &Job) -> String {
    let hash = format!("{:x}", Sha256::digest(format!("{GROUP}\n{}\n{}", job.name, job.uid)));
    let suffix: String = hash.chars().take(HASH_DIGITS).collect();
    let length = NAME_LIMIT.saturating_sub(HASH_DIGITS.saturating_add(1));
    let prefix: String = format!("{NAME_PREFIX}{}", job.name).chars().take(length).collect();
    format!("{prefix}-{suffix}")
}

#[cfg(test)]
pub(crate) mod test_support;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn names_of_workloads_differ_by_uid_and_fit_a_label() {
        let mut job = validated();
        let first = workload_name(&job);
        assert_eq!((first.len(), first.starts_with("rljob-sums-")), (16, true), "{first}");
        job.uid = "another".to_owned();
        assert_ne!(workload_name(&job), first);
        job.name = "n".repeat(60);
        assert_eq!(workload_name(&job).len(), 63);
    }

    #[test]
    fn an_empty_label_names_no_queue() {
        let mut job = validated();
        assert_eq!(queue_name(&job), None);
        job.labels.insert(LABEL_QUEUE.to_owned(), String::new());
        assert_eq!(queue_name(&job), None);
        job.labels.insert(LABEL_QUEUE.to_owned(), "research".to_owned());
        assert_eq!(queue_name(&job), Some("research"));
    }
}
