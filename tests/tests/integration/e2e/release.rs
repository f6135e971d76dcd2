//! A Helm release on a node, where its operator's pods run: a job trains through an upgrade and a
//! rollback, and outlives the removal of the release.

use rljob_tests::{Cluster, Helm, Namespace, rootfs};
use serde_json::{Value, json};

use super::{Run, full_reference, operator_image, steps_done};

/// A cluster of one node with the image of the chart.
fn node() -> Cluster {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
    cluster.import(&image).unwrap();
    cluster
}

/// UIDs and restarts of the job's pods, and the job's generation.
fn kept(run: &Run<'_>) -> Value {
    let kubectl = &run.namespace.kubectl;
    let pods = "--output=jsonpath={range .items[*]}{.metadata.uid} \
        {.status.containerStatuses[*].restartCount}{\"\\n\"}{end}";
    let job = kubectl.get(&[&format!("rljob/{}", run.job)]).unwrap();
    json!({
        "pods": kubectl.run(&["get", "pods", pods]).unwrap(),
        "generation": job["metadata"]["generation"],
        "spec": job["spec"],
    })
}

#[test]
fn a_job_trains_through_upgrade_rollback_and_removal_of_the_release_that_runs_its_operator() {
    let cluster = node();
    let helm = Helm::new(cluster.kubeconfig(), "rljob-system").unwrap();
    let (chart, values) = (Helm::chart(), "--set=jobs.allowHostPath=true,replicas=1");
    // With --wait, Helm ends when the new pods of the operator are ready.
    let install = ["install", "rljob", &chart, values, "--create-namespace", "--wait"];
    helm.run(&install).unwrap();
    let namespace = Namespace::create(&cluster, "released").unwrap();
    let run = Run::start(&cluster, &namespace, include_str!("suspend.yaml"), "pause");
    run.wait_for_steps(3);
    let before = kept(&run);

    let changed = "--set=podAnnotations.revision=second";
    helm.run(&["upgrade", "rljob", &chart, "--reuse-values", changed, "--wait"]).unwrap();
    run.wait_for_progress();
    assert_eq!(kept(&run), before, "upgrade");
    helm.run(&["rollback", "rljob", "1", "--wait"]).unwrap();
    run.wait_for_progress();
    assert_eq!(kept(&run), before, "rollback");
    helm.run(&["uninstall", "rljob", "--wait"]).unwrap();
    run.wait_for_progress();
    assert_eq!(kept(&run), before, "removal");

    helm.run(&install).unwrap();
    let suspend = ["patch", "rljob/pause", "--type=merge", "--patch={\"spec\":{\"suspend\":true}}"];
    namespace.kubectl.run(&suspend).unwrap();
    run.wait_for_condition("Suspended");
    let (status, steps) = (run.status(), steps_done(&run.directory));
    assert_eq!(status["checkpoint"]["step"], steps, "the last step is in a checkpoint: {status}");
    assert_eq!(status["restarts"], 0, "{status}");
}
