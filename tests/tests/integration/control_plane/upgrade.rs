//! Operator upgrades with existing jobs. The previous operator rendered other labels, annotations,
//! defaults and images; existing pods keep them, and jobs started or resumed afterwards use the new
//! ones.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::{Fixture, format_writes, run_parallel};
use super::operator::LIMIT;
use super::{job, merge};

const ROLES: [&str; 3] = ["inference", "coordinator", "trainer"];
const STATES: [&str; 4] = ["starting", "running", "suspended", "finished"];
const TEMPLATE: &str = "rljob.dev/pod-template";

/// Modifies a template as the previous version would have rendered it: other labels, annotations,
/// defaults and flags.
fn to_previous_version(template: &mut Value) {
    let metadata = json!({
        "labels": {"app.kubernetes.io/component": null, "rljob.dev/version": "v0"},
        "annotations": {"rljob.dev/rendered-by": "v0"},
    });
    merge(
        template,
        &json!({
            "metadata": metadata, "spec": {"terminationGracePeriodSeconds": 7, "tolerations": null},
        }),
    );
    let container = &mut template["spec"]["containers"][0];
    merge(container, &json!({"resources": {"requests": {"cpu": "10m"}}, "readinessProbe": null}));
    container["command"].as_array_mut().unwrap().push("--previous-flag".into());
}

/// Applies an object as the operator's field manager.
fn apply(fixture: &Fixture, object: &Value) {
    let arguments = [
        "apply",
        "--server-side",
        "--field-manager=rljob.dev/operator",
        "--force-conflicts",
        "--filename=-",
    ];
    fixture.namespace.kubectl.run_with_input(&arguments, &object.to_string()).unwrap();
}

fn set(fixture: &Fixture, role: &str) -> Value {
    fixture.api.get(&fixture.path("apis/apps/v1", &format!("statefulsets/sample-{role}"))).unwrap()
}

/// Replaces the job's StatefulSets and pods by those of the previous version.
fn render_previous_version(fixture: &Fixture) {
    for role in ROLES {
        let live = set(fixture, role);
        let mut template: Value =
            serde_json::from_str(live["metadata"]["annotations"][TEMPLATE].as_str().unwrap())
                .unwrap();
        to_previous_version(&mut template);
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
            fixture,
            &json!({
                "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec,
            }),
        );
        fixture.lose_pod(&format!("sample-{role}-0"));
    }
}

/// A job in this state under the previous version.
fn job_of_previous_version(state: &str) -> Fixture {
    let mut fixture = Fixture::new(state, &json!({}));
    if state == "starting" {
        fixture.pods.run.lock().end = Some("Starting");
    }
    fixture.start_operator();
    fixture.wait_for(if state == "starting" { "Reconciling" } else { "Ready" });
    // A job is reconciling before it has pods: the coordinator of epoch 1 must have been seen.
    fixture.wait_for_status(&json!({"epoch": 1}));
    fixture.running_pod("sample-trainer-0");
    fixture.wait_until_idle();
    fixture.kill_operator();
    render_previous_version(&fixture);
    // The operator uses the previous templates because they are pinned.
    fixture.start_operator();
    fixture.wait_for_status(&json!({"epoch": 2}));
    fixture.wait_for(if state == "starting" { "Reconciling" } else { "Ready" });
    fixture.bring_to(state);
    fixture.wait_until_idle();
    fixture.kill_operator();
    fixture
}

/// Objects that an upgrade must not change: templates, their generations, and pods.
fn pinned_objects(fixture: &Fixture) -> BTreeMap<String, Value> {
    let sets = ROLES.map(|role| {
        let set = set(fixture, role);
        (
            format!("statefulset {role}"),
            json!([set["metadata"]["generation"], set["metadata"]["annotations"], set["spec"]]),
        )
    });
    let pods = fixture
        .list("api/v1", "pods")
        .into_iter()
        .map(|pod| (pod["metadata"]["name"].to_string(), pod["metadata"]["uid"].clone()));
    sets.into_iter().chain(pods).collect()
}

/// Image of each role, and whether its template is that of the previous version.
fn shapes(fixture: &Fixture, job: &str) -> Vec<(String, bool)> {
    let shape = |role: &str| {
        let set = fixture
            .api
            .get(&fixture.path("apis/apps/v1", &format!("statefulsets/{job}-{role}")))
            .unwrap();
        let template = &set["spec"]["template"];
        (
            template["spec"]["containers"][0]["image"].as_str().unwrap().to_owned(),
            template["metadata"]["labels"]["rljob.dev/version"] == "v0",
        )
    };
    ROLES.map(shape).to_vec()
}

fn of(image: &str, is_previous: bool) -> Vec<(String, bool)> {
    vec![(image.to_owned(), is_previous); 3]
}

#[test]
fn an_upgrade_keeps_pods_and_templates_until_the_next_resume() {
    run_parallel(STATES.to_vec(), |state| {
        let mut fixture = job_of_previous_version(state);
        let (found, written) = (pinned_objects(&fixture), fixture.writes().len());
        assert_eq!(shapes(&fixture, "sample"), of("rljob:a", true), "{state}");

        // Objects that are not part of pods are updated in place.
        let service = fixture.path("api/v1", "services/sample-trainer");
        fixture
            .api
            .patch(
                &service,
                &json!({"metadata": {"labels": {"app.kubernetes.io/component": null}}}),
            )
            .unwrap();
        fixture.start_operator_of("rljob:b");
        let labelled = || {
            Ok(fixture.api.get(&service)?["metadata"]["labels"]["app.kubernetes.io/component"]
                == "trainer")
        };
        wait_until("the new operator's first reconciliation", LIMIT, labelled).unwrap();
        let later = fixture.wait_until_idle().split_off(written);
        assert_eq!(
            pinned_objects(&fixture),
            found,
            "{state}:\n{}\n{}",
            format_writes(&later),
            fixture.output(),
        );
        // A throttled status may be written.
        let made = later.iter().filter(|write| {
            write.changed && !["rljobs", "events"].contains(&write.call.resource.as_str())
        });
        let touched: Vec<&str> = made.map(|write| write.call.resource.as_str()).collect();
        assert_eq!(touched, ["services"], "{state}:\n{}", format_writes(&later));

        let mut new = job();
        merge(&mut new, &json!({"metadata": {"name": "new"}}));
        fixture.namespace.kubectl.apply(&new.to_string()).unwrap();
        let made = || {
            Ok(fixture
                .api
                .get(&fixture.path("apis/apps/v1", "statefulsets/new-coordinator"))
                .is_ok())
        };
        wait_until("a new job's pods", LIMIT, made).unwrap();
        assert_eq!(shapes(&fixture, "new"), of("rljob:b", false), "{state}");
        if state != "finished" {
            fixture.patch(&json!({"suspend": true, "drainTimeoutSeconds": 1}));
            fixture.wait_for("Suspended");
            assert_eq!(
                shapes(&fixture, "sample"),
                of("rljob:a", true),
                "{state}: the templates are rendered at the next resume"
            );
            fixture.patch(&json!({"suspend": false}));
            fixture.running_pod("sample-coordinator-0");
            assert_eq!(shapes(&fixture, "sample"), of("rljob:b", false), "{state}");
        }
        assert!(
            !fixture.output().contains("forbidden"),
            "the service account lacks a permission:\n{}",
            fixture.output()
        );
    });
}
