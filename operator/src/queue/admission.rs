//! The job's place in its queue, from its Workload.

use rljob_crds::RLJobSpec;

use super::workload::{ADMITTED, EVICTED, QUOTA_RESERVED, Workload};
use super::{queue_name, workload_name};
use crate::decide::Queue;
use crate::desired::Role;
use crate::validate::Job;

/// The facts about the queue; `None` if the job is not queued. `problem` is why its Workload cannot
/// be created. A job whose Workload has quota stays queued without the label, until it has stopped.
pub fn queue(job: &Job, workload: Option<&Workload>, problem: Option<&str>) -> Option<Queue> {
    let reserved = workload.filter(|workload| workload.is_reserved());
    if queue_name(job).is_none() && reserved.is_none() {
        return None;
    }
    Some(Queue {
        hold: hold(job, workload, problem),
        ignored: reserved.map(|workload| ignored(job, workload)).unwrap_or_default(),
    })
}

/// The facts about a job with a queue, of an operator that does not use Kueue.
pub fn without_kueue(job: &Job) -> Option<Queue> {
    let queue = queue_name(job)?;
    let ignored = format!(
        "the label kueue.x-k8s.io/queue-name is {queue}, and the operator starts jobs without \
         quota: set kueue.enabled of its chart, or remove the label"
    );
    Some(Queue { hold: None, ignored: vec![ignored] })
}

/// Why the job may have no pods.
fn hold(job: &Job, workload: Option<&Workload>, problem: Option<&str>) -> Option<String> {
    let Some(workload) = workload else {
        let queue = queue_name(job).unwrap_or_default();
        return Some(problem.map_or_else(
            || format!("waiting for Kueue to admit the job from LocalQueue {queue}"),
            ToOwned::to_owned,
        ));
    };
    if workload.may_run() {
        return None;
    }
    let name = workload_name(job);
    if let Some(evicted) = workload.holding(EVICTED).filter(|_| workload.is_reserved()) {
        return Some(format!(
            "Kueue evicted Workload {name}: {}: {}",
            evicted.reason, evicted.message
        ));
    }
    if workload.spec.active == Some(false) {
        return Some(format!(
            "Workload {name} is deactivated; set its spec.active to true to queue the job again"
        ));
    }
    let checked = if workload.is_reserved() { ADMITTED } else { QUOTA_RESERVED };
    let cause = workload.condition(checked).filter(|condition| condition.status == "False");
    Some(cause.map_or_else(
        || {
            let queue = &workload.spec.queue_name;
            format!("waiting for Kueue to admit Workload {name} from LocalQueue {queue}")
        },
        |cause| format!("Workload {name} waits: {}: {}", cause.reason, cause.message),
    ))
}

/// Settings that differ from the quota in use.
fn ignored(job: &Job, workload: &Workload) -> Vec<String> {
    let mut ignored = Vec::new();
    let queue = queue_name(job);
    if queue != Some(workload.spec.queue_name.as_str()) {
        let label = queue.map_or_else(
            || "the label kueue.x-k8s.io/queue-name was removed".to_owned(),
            |queue| format!("the label kueue.x-k8s.io/queue-name is {queue}"),
        );
        ignored.push(format!(
            "{label}, and the job keeps its quota of LocalQueue {} until it is suspended",
            workload.spec.queue_name
        ));
    }
    let wanted = job.spec.inference.replicas;
    let granted = granted_engines(&job.spec, workload);
    if let Some(granted) = granted.filter(|granted| *granted < wanted) {
        ignored.push(format!(
            "spec.inference.replicas is {wanted}, and Kueue granted quota for {granted} engines; \
             suspend and resume the job to queue it again"
        ));
    }
    ignored
}

/// Engines whose pods all have quota; `None` without quota.
fn granted_engines(spec: &RLJobSpec, workload: &Workload) -> Option<i32> {
    workload.status.admission.as_ref().filter(|_| workload.is_reserved())?;
    let pods = workload.granted(Role::Inference.as_str()).unwrap_or_default();
    Some(spec.inference.engines_of(pods))
}

/// Lowers the number of engines to those that have quota.
pub fn limit_engines(spec: &mut RLJobSpec, workload: &Workload) {
    if let Some(granted) = granted_engines(spec, workload) {
        spec.inference.replicas = spec.inference.replicas.min(granted);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::test_support::{admitted, condition, queued_job, workload};
    use super::*;
    use rljob_crds::names::LABEL_QUEUE;

    fn hold_of(conditions: &Value) -> Option<String> {
        let job = queued_job();
        let status = json!({"conditions": conditions});
        queue(&job, Some(&workload(&status)), None).unwrap().hold
    }

    #[test]
    fn a_job_is_held_with_the_message_of_kueue_until_it_is_admitted() {
        let name = workload_name(&queued_job());
        assert_eq!(
            hold_of(&json!([])).unwrap(),
            format!("waiting for Kueue to admit Workload {name} from LocalQueue research")
        );
        let pending = condition("QuotaReserved", "False", "WaitingForQuota", "insufficient quota");
        assert_eq!(
            hold_of(&json!([pending])).unwrap(),
            format!("Workload {name} waits: WaitingForQuota: insufficient quota")
        );
        let reserved = condition("QuotaReserved", "True", "QuotaReserved", "");
        let checks = condition("Admitted", "False", "UnsatisfiedChecks", "a check is pending");
        assert_eq!(
            hold_of(&json!([reserved, checks])).unwrap(),
            format!("Workload {name} waits: UnsatisfiedChecks: a check is pending")
        );
        let admitted = condition("Admitted", "True", "Admitted", "");
        assert_eq!(hold_of(&json!([reserved, admitted])), None);
        let evicted = condition("Evicted", "True", "Preempted", "by a higher priority");
        assert_eq!(
            hold_of(&json!([reserved, admitted, evicted])).unwrap(),
            format!("Kueue evicted Workload {name}: Preempted: by a higher priority")
        );
        let returned = condition("QuotaReserved", "False", "Pending", "by a higher priority");
        assert_eq!(
            hold_of(&json!([returned, evicted])).unwrap(),
            format!("Workload {name} waits: Pending: by a higher priority")
        );
        let finished = condition("Finished", "True", "Succeeded", "");
        assert!(hold_of(&json!([reserved, admitted, finished])).is_some(), "a run that resumes");
    }

    #[test]
    fn a_job_without_a_queue_is_not_held_unless_its_workload_has_quota() {
        let mut job = queued_job();
        job.labels.remove(LABEL_QUEUE);
        assert_eq!(queue(&job, None, None), None);
        assert_eq!(queue(&job, Some(&workload(&json!({}))), None), None);
        let kept = queue(&job, Some(&admitted(2)), None).unwrap();
        assert_eq!(kept.hold, None);
        assert_eq!(
            kept.ignored,
            ["the label kueue.x-k8s.io/queue-name was removed, and the job keeps its quota of \
                LocalQueue research until it is suspended"]
        );
    }

    #[test]
    fn a_label_of_a_queue_without_kueue_holds_no_job_and_is_reported() {
        let mut job = queued_job();
        let ignored = "the label kueue.x-k8s.io/queue-name is research, and the operator starts \
            jobs without quota: set kueue.enabled of its chart, or remove the label";
        let reported = Queue { hold: None, ignored: vec![ignored.to_owned()] };
        assert_eq!(without_kueue(&job), Some(reported));
        job.labels.remove(LABEL_QUEUE);
        assert_eq!(without_kueue(&job), None);
    }

    #[test]
    fn a_new_queue_and_engines_without_quota_are_reported() {
        let mut job = queued_job();
        assert_eq!(queue(&job, Some(&admitted(2)), None).unwrap(), Queue::default());
        job.labels.insert(LABEL_QUEUE.to_owned(), "other".to_owned());
        assert_eq!(
            queue(&job, Some(&admitted(1)), None).unwrap().ignored,
            [
                "the label kueue.x-k8s.io/queue-name is other, and the job keeps its quota of \
                    LocalQueue research until it is suspended",
                "spec.inference.replicas is 2, and Kueue granted quota for 1 engines; suspend and \
                    resume the job to queue it again",
            ]
        );
        limit_engines(&mut job.spec, &admitted(1));
        assert_eq!(job.spec.inference.replicas, 1);
        limit_engines(&mut job.spec, &admitted(2));
        assert_eq!(job.spec.inference.replicas, 1, "quota does not add engines");
        (job.spec.inference.replicas, job.spec.inference.pods_per_replica) = (3, 2);
        limit_engines(&mut job.spec, &admitted(2));
        assert_eq!(job.spec.inference.replicas, 1, "two pods are an engine");
    }

    #[test]
    fn a_problem_is_the_cause_of_the_wait() {
        let held = |problem| queue(&queued_job(), None, problem).unwrap().hold.unwrap();
        assert_eq!(held(None), "waiting for Kueue to admit the job from LocalQueue research");
        assert_eq!(held(Some("no such class")), "no such class");
    }
}
