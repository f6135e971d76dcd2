//! The operator's RBAC permissions are necessary and sufficient, for all namespaces and for one. An
//! operator with the permissions of a release with all switches starts, and runs and ends jobs,
//! queued ones and gangs. Each permission is removed for a while, in which the operator must report
//! what the API server denies; the audit log shows each request and the binding that allowed it.

use std::collections::BTreeSet;

use rljob_tests::files::workspace;
use rljob_tests::{Cluster, Helm, Namespace};

use super::operator::{ACCOUNT, SYSTEM, wait_for_permissions};
use super::queue::kueue::install_crds;

use self::installation::Installation;
use self::permissions::Role;

mod gangs;
mod installation;
mod jobs;
mod permissions;
mod pods;
mod queues;
mod starts;

/// Resources without a namespace that queued jobs refer to.
const CLUSTER_SCOPED: [&str; 3] = ["resourceflavors", "workloadpriorityclasses", "priorityclasses"];

/// The role in the operator's namespace.
const OF_OPERATOR: Role<'_> = Role { kind: "Role", namespace: SYSTEM, name: "rljob-operator" };

/// A control plane with the APIs of all switches.
fn start_cluster() -> Cluster {
    let cluster = Cluster::start_with_gangs(ACCOUNT).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    install_crds(&cluster.kubectl());
    let pod_groups = workspace().join("tests/gangs/crds.yaml").display().to_string();
    cluster.kubectl().run(&["apply", "--filename", &pod_groups]).unwrap();
    cluster
}

/// Installs the chart with all switches for the jobs of all namespaces, or of one.
fn install(cluster: &Cluster, namespace: &Namespace, jobs_namespace: &str) {
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let gangs = "gangSchedulers={native,coscheduling,volcano}";
    let values = format!(
        "--set=replicas=0,crd.install=false,jobs.allowHostPath=true,kueue.enabled=true,{gangs},\
         jobs.namespace={jobs_namespace}"
    );
    helm.run(&["install", "rljob", &Helm::chart(), &values, "--create-namespace"]).unwrap();
    wait_for_permissions(&cluster.kubectl(), SYSTEM, &namespace.name).unwrap();
}

/// Removes each permission of these roles. Requests stay in the namespaces of the operator and its
/// jobs, except those of some verbs.
fn assert_necessary_and_sufficient(
    cluster: &Cluster,
    namespace: &Namespace,
    roles: [Role<'_>; 3],
    cluster_wide: &[&str],
) {
    let installation = Installation::new(cluster, namespace, roles);
    starts::remove(&installation);
    let operator = installation.start_operator();
    jobs::remove(&installation, &operator);
    pods::remove(&installation, &operator);
    queues::remove(&installation, &operator);
    gangs::remove(&installation, &operator);
    installation.assert_permissions_are_needed_and_sufficient();
    let requests = cluster.audited_requests().unwrap().into_iter().filter(|request| {
        !cluster_wide.contains(&request.verb.as_str())
            && !CLUSTER_SCOPED.contains(&request.resource.as_str())
    });
    let namespaces: BTreeSet<String> = requests.map(|request| request.namespace).collect();
    assert_eq!(namespaces, [namespace.name.clone(), SYSTEM.to_owned()].into());
}

#[test]
#[ignore = "long: make thorough"]
fn permissions_for_all_namespaces_are_necessary_and_sufficient() {
    let cluster = start_cluster();
    let namespace = Namespace::create(&cluster, "rights").unwrap();
    install(&cluster, &namespace, "");
    let role = |name| Role { kind: "ClusterRole", namespace: SYSTEM, name };
    let roles = [role("rljob-operator"), role("rljob-operator-kueue"), OF_OPERATOR];
    assert_necessary_and_sufficient(&cluster, &namespace, roles, &["list", "watch"]);
}

#[test]
fn permissions_for_one_namespace_are_necessary_and_sufficient() {
    let cluster = start_cluster();
    let namespace = Namespace::create(&cluster, "rights").unwrap();
    install(&cluster, &namespace, &namespace.name);
    let of_jobs = Role { kind: "Role", namespace: &namespace.name, name: "rljob-operator-jobs" };
    let of_queues =
        Role { kind: "ClusterRole", namespace: SYSTEM, name: "rljob-operator-rljob-system-kueue" };
    let roles = [of_jobs, of_queues, OF_OPERATOR];
    assert_necessary_and_sufficient(&cluster, &namespace, roles, &[]);
}
