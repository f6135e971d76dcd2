//! Releases for one namespace each, side by side in a cluster.

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Helm, Namespace};
use serde_json::json;

use super::{cluster_with, create_restricted, start_operator};
use crate::control_plane::operator::{LIMIT, apply_job, patch, wait_for_condition, wait_for_pods};

const SHARED: &str = "crd.install=false,userRoles.create=false";

/// Installs a release in a namespace for the jobs of another.
fn install(cluster: &Cluster, namespace: &str, jobs: &str, more: &str) -> anyhow::Result<String> {
    let helm = Helm::new(cluster.kubeconfig(), namespace)?;
    let values = format!("--set=jobs.namespace={jobs},jobs.allowHostPath=true,{more}");
    helm.run(&["install", "rljob", &Helm::chart(), &values])
}

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
    only_objects_of_jobs_can_be_changed(&cluster, &a);
    one_namespace_has_one_operator(&cluster, &a);

    drop(first);
    Helm::new(cluster.kubeconfig(), "ops-a").unwrap().run(&["uninstall", "rljob"]).unwrap();
    patch(&b, &json!({"suspend": true}));
    wait_for_condition(&b, "Suspended");
    wait_for_pods(&a, 3);
    drop(second);
}

/// The admission policy of a release for one namespace names its account.
fn only_objects_of_jobs_can_be_changed(cluster: &Cluster, jobs: &Namespace) {
    jobs.kubectl.run(&["create", "configmap", "foreign"]).unwrap();
    let dry_run = "--dry-run=server";
    let delete = ["delete", "configmap/foreign", "--namespace", &jobs.name, dry_run];
    // The policy is effective some seconds after it is created.
    wait_until("the policy to be effective", LIMIT, || {
        let error = denied(cluster, "ops-a", &delete);
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
