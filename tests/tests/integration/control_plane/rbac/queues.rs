//! Permissions for queues of Kueue, which the chart grants with `kueue.enabled`.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::{LIMIT, Operator};
use super::super::queue::kueue::{Kueue, queued};
use super::installation::Installation;

const GROUP: &str = "kueue.x-k8s.io";

/// A queued job whose Workload has a priority class.
fn prioritized() -> Value {
    queued(&json!({
        "metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}},
        "spec": {"drainTimeoutSeconds": 1},
    }))
}

/// Queues jobs, with and without priority classes, and admits, evicts and suspends one, each time
/// without one permission.
pub(super) fn remove(installation: &Installation, operator: &Operator) {
    let namespace = installation.namespace;
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"}, "value": 7,
    });
    namespace.kubectl.apply(&class.to_string()).unwrap();
    let class_of_pods =
        json!({"spec": {"scheduling": {"priorityClassName": "system-node-critical"}}});
    let starts: [(&str, &str, &[&str], Value); 3] = [
        (GROUP, "workloads", &["get", "create", "patch"], queued(&json!({}))),
        (GROUP, "workloadpriorityclasses", &["get"], prioritized()),
        ("scheduling.k8s.io", "priorityclasses", &["get"], queued(&class_of_pods)),
    ];
    for (group, resource, verbs, patch) in starts {
        for permission in installation.permissions(group, resource, verbs) {
            installation.create_job_without(permission, operator, &patch);
        }
    }
    let left = || namespace.kubectl.run(&["get", "workloads.kueue.x-k8s.io", "--output=name"]);
    wait_until("the Workloads to be deleted", LIMIT, || Ok(left()?.is_empty())).unwrap();
    let kueue = Kueue::at(namespace.api.clone(), &namespace.name);
    remove_admission(installation, operator, &kueue);
}

fn remove_admission(installation: &Installation, operator: &Operator, kueue: &Kueue) {
    let job = installation.create_job(&prioritized());
    kueue.wait_for_workload();
    let without = |resource: &str, verb: &str, act: &dyn Fn()| {
        for permission in installation.permissions(GROUP, resource, &[verb]) {
            installation.without(&[permission], || {
                act();
                operator
            });
        }
    };
    without("resourceflavors", "get", &|| kueue.admit("spot", None));
    installation.wait_for_pods_of(&job);
    kueue.wait_for("PodsReady", ["False", "WaitForStart", "not all pods are ready"]);
    let message = "to accommodate a workload of higher priority";
    without("workloads/status", "patch", &|| kueue.evict("Preempted", message));
    kueue.wait_for("QuotaReserved", ["False", "Pending", message]);
    without("workloads", "delete", &|| installation.patch_job(&job, &json!({"suspend": true})));
    wait_until("the Workload to be deleted", LIMIT, || Ok(kueue.workload().is_none())).unwrap();
    installation.delete_job(&job);
}
