//! Permissions for queues of Kueue, which the chart grants with `kueue.enabled`.

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Helm, Namespace};
use serde_json::{Value, json};

use super::super::operator::{
    ACCOUNT, LIMIT, Operator, SYSTEM, apply_job, patch, wait_for_condition, wait_for_permissions,
    wait_for_pods,
};
use super::super::queue::kueue::{Kueue, install_crds};
use super::permissions::{Permission, Role, granted};

fn label(namespace: &Namespace, name: &str, value: &str) {
    let label = format!("kueue.x-k8s.io/{name}{value}");
    namespace.kubectl.run(&["label", "rljob/sample", &label, "--overwrite"]).unwrap();
}

fn wait_for_spec(kueue: &Kueue, field: &str, value: &Value) {
    let has = || Ok(kueue.workload().is_some_and(|workload| workload["spec"][field] == *value));
    wait_until(&format!("{field} of the Workload to be {value}"), LIMIT, has).unwrap();
}

/// Queues a job by both kinds of priority classes, moves it to another queue, admits it, and
/// suspends it.
fn run_lifecycle(namespace: &Namespace, kueue: &Kueue) {
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"}, "value": 7,
    });
    namespace.kubectl.apply(&class.to_string()).unwrap();
    apply_job(
        namespace,
        &json!({
            "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "research"}},
            "spec": {
                "drainTimeoutSeconds": 1,
                "scheduling": {"priorityClassName": "system-node-critical"},
            },
        }),
    );
    wait_for_spec(kueue, "priority", &json!(2_000_001_000));
    label(namespace, "priority-class", "=high");
    wait_for_spec(kueue, "priority", &json!(7));
    label(namespace, "queue-name", "=other");
    wait_for_spec(kueue, "queueName", &json!("other"));
    kueue.admit("spot", None);
    wait_for_pods(namespace, 3);
    kueue.wait_for("PodsReady", ["False", "WaitForStart", "not all pods are ready"]);
    patch(namespace, &json!({"suspend": true}));
    wait_for_condition(namespace, "Suspended");
    let is_gone = || Ok(kueue.workload().is_none());
    wait_until("the Workload to be deleted", LIMIT, is_gone).unwrap();
}

#[test]
fn permissions_for_queues_are_necessary_and_sufficient() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    install_crds(&cluster.kubectl());
    let namespace = Namespace::create(&cluster, "queues").unwrap();
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let values = "--set=jobs.allowHostPath=true,kueue.enabled=true";
    helm.run(&["install", "rljob", &Helm::chart(), values, "--create-namespace"]).unwrap();
    super::super::wait_for_crd(&cluster.kubectl()).unwrap();
    wait_for_permissions(&cluster.kubectl(), SYSTEM, &namespace.name).unwrap();
    let _operator = Operator::start_deployed(&cluster, SYSTEM);
    run_lifecycle(&namespace, &Kueue::at(cluster.api().unwrap(), &namespace.name));

    let role = |name| Role { kind: "ClusterRole", namespace: SYSTEM, name };
    let requests = cluster.audited_requests().unwrap();
    let of_jobs = granted(&cluster, role("rljob-operator"));
    let of_queues = granted(&cluster, role("rljob-operator-kueue"));
    let is_of_kueue = |permission: &Permission| permission.group == "kueue.x-k8s.io";
    let permissions: Vec<Permission> =
        of_jobs.into_iter().filter(is_of_kueue).chain(of_queues).collect();
    assert_eq!(permissions.len(), 10, "{permissions:#?}");
    let unused: Vec<&Permission> = permissions
        .iter()
        .filter(|permission| !requests.iter().any(|request| permission.allows(request)))
        .collect();
    assert_eq!(unused, Vec::<&Permission>::new(), "unused permissions");
}
