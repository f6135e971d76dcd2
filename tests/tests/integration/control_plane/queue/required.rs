//! The policy of the chart that demands a queue of RLJobs (`kueue.requireQueue`).

use rljob_tests::process::wait_until;
use rljob_tests::{Helm, Namespace};
use serde_json::{Value, json};

use super::super::operator::{LIMIT, SYSTEM};
use super::super::{cluster, job_with, merge};
use super::kueue::queued;

/// A job with a name.
fn named(name: &str, patch: &Value) -> String {
    let mut named = json!({"metadata": {"name": name}});
    merge(&mut named, patch);
    job_with(&named)
}

#[test]
fn a_namespace_that_requires_a_queue_admits_no_job_without_one() {
    let [required, free] = ["required", "free"].map(|prefix| {
        let namespace = Namespace::create(cluster(), prefix).unwrap();
        namespace.kubectl.apply(&named("old", &json!({}))).unwrap();
        namespace
    });
    cluster().kubectl().run(&["label", "namespace", &required.name, "managed=true"]).unwrap();
    let template = [
        "template",
        "rljob",
        &Helm::chart(),
        "--set=kueue.enabled=true",
        "--set-string=kueue.requireQueue.managed=true",
        "--show-only=templates/queue-policy.yaml",
    ];
    let policy = Helm::offline(SYSTEM).unwrap().run(&template).unwrap();
    cluster().kubectl().apply(&policy).unwrap();

    let create = |namespace: &Namespace, job: &str| {
        let dry_run = ["create", "--dry-run=server", "--filename=-"];
        namespace.kubectl.run_with_input(&dry_run, job)
    };
    let reason = "RLJobs of this namespace need a queue of Kueue: set the label \
        kueue.x-k8s.io/queue-name to the name of a LocalQueue";
    // The policy is effective some seconds after it is created.
    wait_until("the policy to be effective", LIMIT, || {
        let answer = create(&required, &named("new", &json!({})));
        Ok(answer.is_err_and(|error| format!("{error:#}").contains(reason)))
    })
    .unwrap();
    let empty = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": ""}}});
    let error = format!("{:#}", create(&required, &named("new", &empty)).unwrap_err());
    assert!(error.contains(reason), "{error}");
    create(&free, &named("new", &json!({}))).unwrap();

    required.kubectl.apply(&named("new", &queued(&json!({})))).unwrap();
    let label = |job: &str, label: &str| {
        required.kubectl.run(&["label", "rljob", job, "--overwrite", label])
    };
    label("new", "kueue.x-k8s.io/queue-name=other").unwrap();
    let error = format!("{:#}", label("new", "kueue.x-k8s.io/queue-name-").unwrap_err());
    assert!(error.contains(reason), "{error}");
    // A job that exists without a queue can be changed.
    let suspend = json!({"spec": {"suspend": true}}).to_string();
    required.kubectl.run(&["patch", "rljob/old", "--type=merge", "--patch", &suspend]).unwrap();
}
