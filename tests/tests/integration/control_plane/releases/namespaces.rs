//! Releases for one namespace each: side by side in a cluster, and in the namespace of its jobs.

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Helm, Namespace};
use serde_json::{Value, json};

use super::{SHARED, cluster_with, create_restricted, install, start_operator, start_release};
use crate::control_plane::cluster;
use crate::control_plane::operator::{
    LIMIT, apply_job, field, patch, wait_for_condition, wait_for_pods,
};

/// kubectl's error when the account of the operator in a namespace runs a command.
fn denied(cluster: &Cluster, namespace: &str, arguments: &[&str]) -> String {
    let account = format!("--as=system:serviceaccount:{namespace}:rljob-operator");
    let arguments: Vec<&str> = arguments.iter().copied().chain([account.as_str()]).collect();
    match cluster.kubectl().run(&arguments) {
        Ok(output) => format!("allowed: {output}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn releases_for_one_namespace_each_run_side_by_side() {
    let cluster = cluster_with("ops-a");
    create_restricted(&cluster.kubectl(), "ops-b");
    let [a, b] = ["a", "b"].map(|prefix| Namespace::create(&cluster, prefix).unwrap());
    install(&cluster, "ops-a", &a.name, "replicas=1").unwrap();
    install(&cluster, "ops-b", &b.name, SHARED).unwrap();
    let first = start_operator(&cluster, "ops-a", &a.name);
    let second = start_operator(&cluster, "ops-b", &b.name);
    for namespace in [&a, &b] {
        apply_job(namespace, &json!({"spec": {"drainTimeoutSeconds": 1}}));
        wait_for_pods(namespace, 3);
    }
    for (account, namespace) in [("ops-a", &b), ("ops-b", &a)] {
        let read = ["get", "rljobs", "--namespace", &namespace.name];
        assert!(denied(&cluster, account, &read).contains("forbidden"), "{account}");
    }
    only_objects_of_jobs_can_be_changed(&cluster, "ops-a", &a);
    one_namespace_has_one_operator(&cluster, &a);

    drop(first);
    Helm::new(cluster.kubeconfig(), "ops-a").unwrap().run(&["uninstall", "rljob"]).unwrap();
    patch(&b, &json!({"suspend": true}));
    wait_for_condition(&b, "Suspended");
    wait_for_pods(&a, 3);
    drop(second);
}

/// The admission policy of a release for one namespace names its account.
fn only_objects_of_jobs_can_be_changed(cluster: &Cluster, release: &str, jobs: &Namespace) {
    jobs.kubectl.run(&["create", "configmap", "foreign"]).unwrap();
    let dry_run = "--dry-run=server";
    let delete = ["delete", "configmap/foreign", "--namespace", &jobs.name, dry_run];
    // The policy is effective some seconds after it is created.
    wait_until("the policy to be effective", LIMIT, || {
        let error = denied(cluster, release, &delete);
        Ok(error.contains("changes only objects that an RLJob controls"))
    })
    .unwrap();
}

fn one_namespace_has_one_operator(cluster: &Cluster, jobs: &Namespace) {
    create_restricted(&cluster.kubectl(), "ops-c");
    let error = format!("{:#}", install(cluster, "ops-c", &jobs.name, SHARED).unwrap_err());
    let reason = format!("Role \"rljob-operator-jobs\" in namespace \"{}\" exists", jobs.name);
    assert!(error.contains(&reason), "{error}");
}

/// Pods of such a job would have the rights of the operator.
#[test]
fn a_job_beside_its_operator_cannot_have_the_operators_service_account() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "beside").unwrap();
    let _operator = start_release(cluster, &namespace.name);
    only_objects_of_jobs_can_be_changed(cluster, &namespace.name, &namespace);
    let job = |account: &Value| json!({"spec": {"trainer": {"template": {"spec": account}}}});
    let reason = "pods of RLJobs cannot have the service account of the rljob operator, change \
        serviceAccountName in the pod template";
    let path = ".status.conditions[?(@.type=='Stalled')].message";
    // The second field is the deprecated name of the first.
    for name in ["serviceAccountName", "serviceAccount"] {
        apply_job(&namespace, &job(&json!({ name: "rljob-operator" })));
        wait_until(&format!("{name} to be refused"), LIMIT, || {
            Ok(field(&namespace, "rljob/sample", path).contains(reason))
        })
        .unwrap();
        namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    }
    apply_job(&namespace, &job(&json!({"serviceAccountName": "default"})));
    wait_for_pods(&namespace, 3);
}
