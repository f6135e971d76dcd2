//! Applies without drift: once the operator has acted, a second apply of the same manifest changes
//! nothing, and neither kubectl nor Argo CD finds a difference.

use std::fs;
use std::path::PathBuf;

use rljob_tests::files::workspace;
use rljob_tests::gitops::{diff, server_side_diff};
use rljob_tests::process::wait_until;
use rljob_tests::{Kubectl, Namespace};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control_plane::fixture::Fixture;
use crate::control_plane::operator::{LIMIT, Operator};
use crate::control_plane::{cluster, job_with};

/// Ways of applying.
const CLIENT_SIDE: &[&str] = &[];
const SERVER_SIDE: &[&str] = &["--server-side"];

/// Samples, those of algorithms included, and the production job of the GitOps manifests.
fn manifests(kubectl: &Kubectl) -> String {
    let folders = ["manifests/samples", "manifests/samples/algorithms"];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(workspace().join(folder)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let samples = paths.filter(is_yaml).map(|path| fs::read_to_string(path).unwrap());
    let overlay = workspace().join("manifests/gitops/jobs/production").display().to_string();
    let production = kubectl.run(&["kustomize", &overlay]).unwrap();
    // The samples have a job of the same name; the namespace is that of the test.
    let renamed = production.replace("name: gsm8k\n", "name: production\n");
    let renamed = renamed.replace("  namespace: training\n", "");
    samples.chain([renamed]).collect::<Vec<_>>().join("\n---\n")
}

fn jobs(manifests: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(manifests);
    documents.map(|document| Value::deserialize(document).unwrap()).collect()
}

fn apply(kubectl: &Kubectl, mode: &[&str], manifests: &str) -> String {
    kubectl.run_with_input(&[&["apply", "--filename=-"], mode].concat(), manifests).unwrap()
}

/// Waits until the operator has observed all jobs.
fn wait_until_observed(namespace: &Namespace) {
    wait_until("all jobs to be observed", LIMIT, || {
        let list = namespace.kubectl.get(&["rljobs"])?;
        let jobs = list["items"].as_array().unwrap();
        let is_observed = |job: &Value| {
            job["status"]["observedGeneration"] == job["metadata"]["generation"]
                && job["status"]["conditions"].is_array()
        };
        Ok(jobs.iter().all(is_observed))
    })
    .unwrap();
}

/// What users own of all jobs: generation, spec and managed fields, except those of the operator.
fn owned_by_users(namespace: &Namespace) -> Vec<Value> {
    let list = namespace.kubectl.get(&["rljobs", "--show-managed-fields"]).unwrap();
    let jobs = list["items"].as_array().unwrap().iter();
    let owned = |job: &Value| {
        let entries = job["metadata"]["managedFields"].as_array().unwrap().iter();
        let others = entries.filter(|entry| entry["manager"] != "rljob.dev/operator");
        json!([
            job["metadata"]["name"],
            job["metadata"]["generation"],
            job["spec"],
            others.collect::<Vec<_>>()
        ])
    };
    jobs.map(owned).collect()
}

fn has_no_drift(prefix: &str, mode: &[&str], answers: &[&str]) {
    let namespace = Namespace::create(cluster(), prefix).unwrap();
    let kubectl = &namespace.kubectl;
    let manifests = manifests(kubectl);
    let _operator = Operator::start(&namespace, "rljob:a");
    apply(kubectl, mode, &manifests);
    wait_until_observed(&namespace);
    let before = owned_by_users(&namespace);
    assert_eq!(before.len(), jobs(&manifests).len());

    // kubectl shows a status that the operator writes between its two reads as a difference.
    wait_until("an empty difference", LIMIT, || {
        let arguments = [&["diff", "--filename=-"], mode].concat();
        Ok(kubectl.run_with_input(&arguments, &manifests)?.is_empty())
    })
    .unwrap();
    let output = apply(kubectl, mode, &manifests);
    let is_expected = |line: &str| answers.iter().any(|answer| line.ends_with(answer));
    assert!(output.lines().all(is_expected), "{output}");
    assert_eq!(owned_by_users(&namespace), before, "the second apply changed something");
    are_in_sync(&namespace, jobs(&manifests));
}

/// Compares jobs with their manifests as Argo CD does in both of its modes.
fn are_in_sync(namespace: &Namespace, mut desired: Vec<Value>) {
    for job in &mut desired {
        job["metadata"]["namespace"] = json!(namespace.name);
    }
    for (desired, live) in desired.iter().zip(live(namespace, &desired)) {
        let compared = diff(desired, &live).unwrap();
        assert!(!compared.modified, "{:#}\n{:#}", compared.live, compared.predicted);
    }
    let dry_run = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--field-manager=argocd-controller",
        "--force-conflicts",
        "--filename=-",
        "--output=json",
        "--show-managed-fields",
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": desired});
    let output = namespace.kubectl.run_with_input(&dry_run, &list.to_string()).unwrap();
    let predicted: Value = serde_json::from_str(&output).unwrap();
    // kubectl prints one object without a list.
    let items = predicted["items"].as_array().cloned();
    let predicted = items.unwrap_or_else(|| vec![predicted]);
    assert_eq!(predicted.len(), desired.len());
    // Server-side diff compares the statuses too; the operator may have written one meanwhile.
    let without_status = |mut object: Value| {
        object["status"] = Value::Null;
        object
    };
    for ((desired, live), predicted) in desired.iter().zip(live(namespace, &desired)).zip(predicted)
    {
        let (live, predicted) = (without_status(live), without_status(predicted));
        let compared = server_side_diff(desired, &live, &predicted).unwrap();
        assert!(!compared.modified, "{:#}\n{:#}", compared.live, compared.predicted);
    }
}

/// The live objects of these jobs.
fn live(namespace: &Namespace, jobs: &[Value]) -> Vec<Value> {
    let list = namespace.kubectl.get(&["rljobs", "--show-managed-fields"]).unwrap();
    let items = list["items"].as_array().unwrap();
    let named = |name: &Value| items.iter().find(|item| item["metadata"]["name"] == *name).cloned();
    jobs.iter().map(|job| named(&job["metadata"]["name"]).unwrap()).collect()
}

/// kubectl answers `configured` where a list item has a default that the manifest leaves out: it
/// sends the list of the manifest, and the API server completes it to what it has.
#[test]
fn a_second_client_side_apply_changes_nothing() {
    has_no_drift("client-side", CLIENT_SIDE, &[" unchanged", " configured"]);
}

#[test]
fn a_second_server_side_apply_changes_nothing() {
    has_no_drift("server-side", SERVER_SIDE, &[" serverside-applied"]);
}

/// The sample job with the default weight of its reward.
fn complete_job() -> String {
    let reward = json!({"name": "correct", "weight": 1, "exactMatch": {}});
    job_with(&json!({"spec": {"rewards": [reward]}}))
}

#[test]
fn fields_that_git_leaves_out_can_be_set_by_people_and_autoscalers() {
    for (mode, answer) in [(CLIENT_SIDE, "unchanged"), (SERVER_SIDE, "serverside-applied")] {
        let mut fixture = Fixture::new("left-out", &json!({}));
        let kubectl = &fixture.namespace.kubectl.clone();
        kubectl.run(&["delete", "rljob/sample"]).unwrap();
        apply(kubectl, mode, &complete_job());
        fixture.start_operator();
        fixture.wait_for("Ready");
        kubectl.run(&["scale", "rljob/sample", "--replicas=2"]).unwrap();
        fixture.bring_to("suspended");
        let output = apply(kubectl, mode, &complete_job());
        assert_eq!(output, format!("rljob.rljob.dev/sample {answer}\n"));
        let spec = fixture.job()["spec"].take();
        assert_eq!((&spec["suspend"], &spec["inference"]["replicas"]), (&json!(true), &json!(2)));
        let desired = serde_json::from_str(&complete_job()).unwrap();
        are_in_sync(&fixture.namespace, vec![desired]);
    }
}

#[test]
fn the_operator_writes_only_the_status_of_a_job() {
    let fixture = Fixture::running("status-only", &json!({}));
    fixture.bring_to("suspended");
    fixture.patch(&json!({"suspend": false}));
    fixture.wait_for("Ready");
    fixture.bring_to("finished");
    let job = fixture.namespace.kubectl.get(&["rljob/sample", "--show-managed-fields"]).unwrap();
    assert_eq!(job["metadata"]["generation"], 3, "one creation and two changes by the test");
    let entries = job["metadata"]["managedFields"].as_array().unwrap();
    let own: Vec<_> =
        entries.iter().filter(|entry| entry["manager"] == "rljob.dev/operator").collect();
    assert!(!own.is_empty(), "{entries:#?}");
    for entry in own {
        let fields: Vec<_> = entry["fieldsV1"].as_object().unwrap().keys().collect();
        assert_eq!(
            (&entry["subresource"], fields),
            (&json!("status"), vec![&"f:status".to_owned()])
        );
    }
}
