//! Tests of the action on the Workload in each state.

use super::super::test_support::{admitted, condition as listed, queued_job, workload};
use super::*;
use crate::decide::Wait;
use crate::decide::test_support::{at, facts, outcome};
use rljob_crds::names::LABEL_QUEUE;

fn queued() -> Decision {
    Decision::Queued { message: "waiting".to_owned() }
}

fn planned(workload: Option<&Workload>, decision: &Decision, roles: &Roles) -> WorkloadAction {
    plan(&queued_job(), workload, decision, &with(*roles), at(0))
}

fn with(roles: Roles) -> Facts {
    Facts { roles, ..facts() }
}

/// The Workload after a report.
fn after(workload: &Workload, action: WorkloadAction) -> Workload {
    let WorkloadAction::Report(patch) = action else { panic!("no report: {action:?}") };
    let mut status = json!({
        "admission": workload.status.admission.as_ref().map(|_| json!({"clusterQueue": "cluster"})),
    });
    for (field, value) in patch.as_object().unwrap() {
        status[field] = value.clone();
    }
    status.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    Workload { status: serde_json::from_value(status).unwrap(), ..workload.clone() }
}

fn state(workload: &Workload, type_: &str) -> (String, String) {
    let condition = workload.condition(type_).unwrap();
    (condition.status.clone(), condition.reason.clone())
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

fn evicted(reason: &str) -> Workload {
    let mut workload = admitted(2);
    let condition = listed(EVICTED, "True", reason, "because");
    workload.status.conditions.push(serde_json::from_value(condition).unwrap());
    workload
}

#[test]
fn a_workload_exists_while_the_job_waits_or_runs() {
    let (gone, pods) = (Roles::default(), facts().roles);
    let pending = workload(&json!({}));
    for (case, workload, decision, roles, expected) in [
        ("no workload", None, queued(), gone, WorkloadAction::Apply),
        ("not held", None, Decision::Run, pods, WorkloadAction::Keep),
        ("waits", Some(&pending), queued(), gone, WorkloadAction::Apply),
        ("suspended", Some(&pending), Decision::Suspended, gone, WorkloadAction::Delete),
        ("suspended with quota", Some(&admitted(2)), Decision::Suspended, gone, {
            WorkloadAction::Delete
        }),
        ("deleting pods", Some(&admitted(2)), Decision::Release, pods, WorkloadAction::Keep),
        ("checks pending", Some(&admitted(2)), queued(), gone, WorkloadAction::Keep),
        ("ended", Some(&pending), Decision::Expired(outcome()), gone, WorkloadAction::Keep),
    ] {
        assert_eq!(planned(workload, &decision, &roles), expected, "{case}");
    }
    let mut job = queued_job();
    job.labels.remove(LABEL_QUEUE);
    assert_eq!(plan(&job, None, &queued(), &with(gone), at(0)), WorkloadAction::Keep);
    let unlabelled = plan(&job, Some(&pending), &Decision::Run, &with(pods), at(0));
    assert_eq!(unlabelled, WorkloadAction::Delete);
}

#[test]
fn a_job_that_cannot_start_holds_no_quota() {
    let blocked = |workload: Option<&Workload>, roles| {
        let obstacle = Obstacle::foreign_objects(&["Service sums-trainer".to_owned()]);
        let facts = Facts { obstacle, ..with(roles) };
        plan(&queued_job(), workload, &Decision::Start(Wait::Starting), &facts, at(0))
    };
    let (gone, workload) = (Roles::default(), admitted(2));
    assert_eq!(blocked(Some(&workload), gone), WorkloadAction::Delete);
    assert_eq!(blocked(None, gone), WorkloadAction::Keep);
    let with_pods = blocked(Some(&workload), facts().roles);
    assert!(matches!(with_pods, WorkloadAction::Report(_)), "{with_pods:?}");
}

#[test]
fn an_evicted_job_returns_its_quota_when_no_pod_is_left() {
    let (gone, pods) = (Roles::default(), facts().roles);
    let workload = evicted("Preempted");
    let drain = Decision::Drain { deadline: at(9) };
    assert_eq!(planned(Some(&workload), &drain, &pods), WorkloadAction::Keep);
    let returned = after(&workload, planned(Some(&workload), &queued(), &gone));
    assert_eq!(returned.status.admission, None);
    assert_eq!(state(&returned, "QuotaReserved"), is("False", "Pending"));
    assert_eq!(state(&returned, "Admitted"), is("False", "NoReservation"));
    assert_eq!(state(&returned, "Requeued"), is("True", "Preempted"));
    assert_eq!(state(&returned, "Evicted"), is("True", "Preempted"));
    assert_eq!(returned.condition("Admitted").unwrap().last_transition_time, Time(at(0)));
    let timeout = evicted("PodsReadyTimeout");
    let returned = after(&timeout, planned(Some(&timeout), &queued(), &gone));
    assert_eq!(state(&returned, "Requeued"), is("False", "PodsReadyTimeout"));
}

#[test]
fn a_finished_job_finishes_its_workload_when_no_pod_is_left() {
    let (gone, pods) = (Roles::default(), facts().roles);
    let workload = admitted(2);
    let finished = Decision::Finished(outcome());
    assert_eq!(planned(Some(&workload), &finished, &pods), WorkloadAction::Keep);
    let ended = after(&workload, planned(Some(&workload), &finished, &gone));
    assert_eq!(state(&ended, "Finished"), is("True", "Succeeded"));
    assert_eq!(ended.condition("Finished").unwrap().message, outcome().message);
    assert_eq!(planned(Some(&ended), &finished, &gone), WorkloadAction::Keep);
    let failed = Decision::Finished(Outcome { succeeded: false, ..outcome() });
    let ended = after(&workload, planned(Some(&workload), &failed, &gone));
    assert_eq!(state(&ended, "Finished"), is("True", "Failed"));
    // The run resumes, because its steps were raised.
    assert_eq!(planned(Some(&ended), &queued(), &gone), WorkloadAction::Delete);
}

#[test]
fn ready_pods_are_reported_once_and_lost_ones_as_a_recovery() {
    let ready = facts().roles;
    let lost = Roles { trainer: RoleCounts { wanted: 1, existing: 1, ready: 0 }, ..ready };
    let workload = admitted(2);
    let start = Decision::Start(Wait::Starting);
    let waiting = after(&workload, planned(Some(&workload), &start, &lost));
    assert_eq!(state(&waiting, "PodsReady"), is("False", "WaitForStart"));
    assert_eq!(state(&waiting, "Admitted"), is("True", "Admitted"), "other conditions are kept");
    let started = after(&waiting, planned(Some(&waiting), &Decision::Run, &ready));
    assert_eq!(state(&started, "PodsReady"), is("True", "Started"));
    let mut known = workload.clone();
    known.status.conditions = started.status.conditions.clone();
    assert_eq!(planned(Some(&known), &Decision::Run, &ready), WorkloadAction::Keep);
    let broken = after(&known, planned(Some(&known), &Decision::Run, &lost));
    assert_eq!(state(&broken, "PodsReady"), is("False", "WaitForRecovery"));
    known.status.conditions = broken.status.conditions;
    let again = after(&known, planned(Some(&known), &Decision::Run, &ready));
    assert_eq!(state(&again, "PodsReady"), is("True", "Recovered"));
}

#[test]
fn quota_of_engines_that_are_no_longer_wanted_is_returned_after_their_pods_are_gone() {
    let reclaimable_of = |pods_per_replica, workload: &Workload, engines, existing| {
        let mut job = queued_job();
        job.spec.inference.replicas = engines;
        job.spec.inference.pods_per_replica = pods_per_replica;
        let mut roles = facts().roles;
        roles.inference = RoleCounts { wanted: engines, existing, ready: engines };
        match plan(&job, Some(workload), &Decision::Run, &with(roles), at(0)) {
            WorkloadAction::Report(patch) => patch.get("reclaimablePods").cloned(),
            action => panic!("{action:?}"),
        }
    };
    let reclaimable =
        |workload: &Workload, engines, existing| reclaimable_of(1, workload, engines, existing);
    let one = json!([{"name": "inference", "count": 1}]);
    assert_eq!(reclaimable(&admitted(2), 2, 2), None);
    assert_eq!(reclaimable(&admitted(2), 1, 2), None, "the engine still exists");
    assert_eq!(reclaimable(&admitted(2), 1, 1), Some(one));
    assert_eq!(reclaimable(&admitted(1), 1, 1), None, "fewer engines were admitted");
    assert_eq!(reclaimable_of(2, &admitted(2), 1, 1), None, "an engine of two pods");
    let mut returned = admitted(2);
    returned.status.reclaimable_pods =
        serde_json::from_value(json!([{"name": "inference", "count": 1}])).unwrap();
    assert_eq!(reclaimable(&returned, 1, 1), None, "it was returned");
    assert_eq!(returned.granted("inference"), Some(1));
}
