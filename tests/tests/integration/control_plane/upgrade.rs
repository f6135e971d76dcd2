//! An upgrade of the operator over live jobs. The one before rendered other labels, annotations,
//! defaults and images; what is there stays as it was rendered, and what starts or is resumed
//! afterwards is as the new one renders it.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::operator::LIMIT;
use super::stage::{Stage, in_lanes, listed};
use super::{job, merge};

const ROLES: [&str; 3] = ["inference", "coordinator", "trainer"];
const STATES: [&str; 4] = ["starting", "running", "suspended", "finished"];
const TEMPLATE: &str = "rljob.dev/pod-template";

/// A template as an operator of before rendered it: other labels and annotations, other defaults,
/// another flag.
fn as_before(template: &mut Value) {
    let metadata = json!({"labels": {"app.kubernetes.io/component": null, "rljob.dev/version": "v0"}, "annotations": {"rljob.dev/rendered-by": "v0"}});
    merge(
        template,
        &json!({"metadata": metadata, "spec": {"terminationGracePeriodSeconds": 7, "tolerations": null}}),
    );
    let container = &mut template["spec"]["containers"][0];
    merge(container, &json!({"resources": {"requests": {"cpu": "10m"}}, "readinessProbe": null}));
    container["command"].as_array_mut().unwrap().push("--of-before".into());
}

/// Applies an object in the operator's name.
fn apply(stage: &Stage, object: &Value) {
    let arguments = [
        "apply",
        "--server-side",
        "--field-manager=rljob.dev/operator",
        "--force-conflicts",
        "--filename=-",
    ];
    stage.namespace.kubectl.run_with_input(&arguments, &object.to_string()).unwrap();
}

fn set(stage: &Stage, role: &str) -> Value {
    stage.api.get(&stage.path("apis/apps/v1", &format!("statefulsets/sample-{role}"))).unwrap()
}

/// Puts the job's StatefulSets into the shape of before, and their pods with them.
fn render_as_before(stage: &Stage) {
    for role in ROLES {
        let live = set(stage, role);
        let mut template: Value =
            serde_json::from_str(live["metadata"]["annotations"][TEMPLATE].as_str().unwrap())
                .unwrap();
        as_before(&mut template);
        let mut metadata = json!({"annotations": {TEMPLATE: template.to_string()}});
        for field in ["name", "namespace", "labels", "ownerReferences"] {
            metadata[field] = live["metadata"][field].clone();
        }
        let mut spec = json!({"template": template});
        for field in [
            "replicas",
            "selector",
            "serviceName",
            "podManagementPolicy",
            "updateStrategy",
            "revisionHistoryLimit",
        ] {
            spec[field] = live["spec"][field].clone();
        }
        apply(
            stage,
            &json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}),
        );
        stage.lose_pod(&format!("sample-{role}-0"));
    }
}

/// A job in this state under the operator of before.
fn before(state: &str) -> Stage {
    let mut stage = Stage::set(state, &json!({}));
    if state == "starting" {
        stage.play.run.lock().unwrap().end = Some("Starting");
    }
    stage.start_operator();
    stage.wait_for(if state == "starting" { "Reconciling" } else { "Ready" });
    stage.rest();
    stage.kill_operator();
    render_as_before(&stage);
    // It knows the templates of before: they are pinned.
    stage.start_operator();
    stage.wait_for_status(&json!({"epoch": 2}));
    stage.wait_for(if state == "starting" { "Reconciling" } else { "Ready" });
    stage.bring_to(state);
    stage.rest();
    stage.kill_operator();
    stage
}

/// What an upgrade must not touch: templates, their generations, and pods.
fn lasting(stage: &Stage) -> BTreeMap<String, Value> {
    let sets = ROLES.map(|role| {
        let set = set(stage, role);
        (
            format!("statefulset {role}"),
            json!([set["metadata"]["generation"], set["metadata"]["annotations"], set["spec"]]),
        )
    });
    let pods = stage
        .list("api/v1", "pods")
        .into_iter()
        .map(|pod| (pod["metadata"]["name"].to_string(), pod["metadata"]["uid"].clone()));
    sets.into_iter().chain(pods).collect()
}

/// The image, and whether the template is in the shape of before.
fn shapes(stage: &Stage, job: &str) -> Vec<(String, bool)> {
    let shape = |role: &str| {
        let set = stage
            .api
            .get(&stage.path("apis/apps/v1", &format!("statefulsets/{job}-{role}")))
            .unwrap();
        let template = &set["spec"]["template"];
        (
            template["spec"]["containers"][0]["image"].as_str().unwrap().to_owned(),
            template["metadata"]["labels"]["rljob.dev/version"] == "v0",
        )
    };
    ROLES.map(shape).to_vec()
}

fn of(image: &str, is_as_before: bool) -> Vec<(String, bool)> {
    vec![(image.to_owned(), is_as_before); 3]
}

#[test]
fn an_upgrade_restarts_no_pod_and_changes_no_template_and_what_starts_afterwards_is_new() {
    in_lanes(STATES.to_vec(), |state| {
        let mut stage = before(state);
        let (found, written) = (lasting(&stage), stage.writes().len());
        assert_eq!(shapes(&stage, "sample"), of("rljob:a", true), "{state}");

        // What pods are not made from is put right in place.
        let service = stage.path("api/v1", "services/sample-trainer");
        stage
            .api
            .patch(
                &service,
                &json!({"metadata": {"labels": {"app.kubernetes.io/component": null}}}),
            )
            .unwrap();
        stage.start_operator_of("rljob:b");
        let labelled = || {
            Ok(stage.api.get(&service)?["metadata"]["labels"]["app.kubernetes.io/component"]
                == "trainer")
        };
        wait_until("the new operator's first pass", LIMIT, labelled).unwrap();
        let later = stage.rest().split_off(written);
        assert_eq!(lasting(&stage), found, "{state}:\n{}\n{}", listed(&later), stage.words());
        // A status may be due that was held back for a minute.
        let made = later.iter().filter(|write| {
            write.changed && !["rljobs", "events"].contains(&write.call.resource.as_str())
        });
        let touched: Vec<&str> = made.map(|write| write.call.resource.as_str()).collect();
        assert_eq!(touched, ["services"], "{state}:\n{}", listed(&later));

        let mut new = job();
        merge(&mut new, &json!({"metadata": {"name": "new"}}));
        stage.namespace.kubectl.apply(&new.to_string()).unwrap();
        let made = || {
            Ok(stage.api.get(&stage.path("apis/apps/v1", "statefulsets/new-coordinator")).is_ok())
        };
        wait_until("a new job's pods", LIMIT, made).unwrap();
        assert_eq!(shapes(&stage, "new"), of("rljob:b", false), "{state}");
        if state != "finished" {
            stage.patch(&json!({"suspend": true, "drainTimeoutSeconds": 1}));
            stage.wait_for("Suspended");
            assert_eq!(
                shapes(&stage, "sample"),
                of("rljob:a", true),
                "{state}: it is rendered when it is resumed"
            );
            stage.patch(&json!({"suspend": false}));
            stage.running_pod("sample-coordinator-0");
            assert_eq!(shapes(&stage, "sample"), of("rljob:b", false), "{state}");
        }
        assert!(
            !stage.words().contains("forbidden"),
            "the service account lacks a right:\n{}",
            stage.words()
        );
    });
}
