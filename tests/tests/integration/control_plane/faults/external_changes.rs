//! External changes of a job's children: deleted or modified children are restored; children with
//! another owner are left unchanged and reported.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::LIMIT;
use super::fixture::{Fixture, differences, format_writes, is_true};

/// Children that the operator watches.
const WATCHED: [(&str, &str); 6] = [
    ("apis/apps/v1", "statefulsets/sample-trainer"),
    ("apis/apps/v1", "statefulsets/sample-coordinator"),
    ("apis/apps/v1", "statefulsets/sample-inference"),
    ("api/v1", "services/sample-trainer"),
    ("apis/networking.k8s.io/v1", "networkpolicies/sample"),
    ("apis/policy/v1", "poddisruptionbudgets/sample-inference"),
];

#[test]
fn deleted_children_are_recreated() {
    let fixture = Fixture::running("removed", &json!({}));
    fixture.wait_until_idle();
    let state = fixture.end_state();
    for (group, child) in WATCHED {
        let uid = || Ok(fixture.api.get(&fixture.path(group, child))?["metadata"]["uid"].clone());
        let before: Value = uid().unwrap();
        fixture
            .api
            .delete(&fixture.path(group, child), &json!({"propagationPolicy": "Background"}))
            .unwrap();
        wait_until(&format!("a new {child}"), LIMIT, || uid().map(|after| after != before))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    }
    fixture.wait_for("Ready");
    let mut expected = state;
    // The coordinator was replaced.
    expected.get_mut("rljobs/sample").unwrap()["status"]["epoch"] = json!(2);
    fixture.wait_for_end_state(&expected, "every child was deleted once");
}

#[test]
fn changed_labels_are_restored() {
    let fixture = Fixture::running("labels", &json!({}));
    fixture.wait_until_idle();
    let state = fixture.end_state();
    for (group, child) in WATCHED {
        let labels = json!({
            "metadata": {
                "labels": {"rljob.dev/job": null, "app.kubernetes.io/instance": "another"},
            },
        });
        fixture.api.patch(&fixture.path(group, child), &labels).unwrap();
    }
    fixture.wait_for_end_state(&state, "every child lost its labels");
}

#[test]
fn a_disowned_child_is_left_unchanged_until_it_is_owned_again() {
    let fixture = Fixture::running("disowned", &json!({}));
    fixture.wait_until_idle();
    let state = fixture.end_state();
    let path = fixture.path("apis/apps/v1", "statefulsets/sample-trainer");
    let owners = fixture.api.get(&path).unwrap()["metadata"]["ownerReferences"].take();
    fixture
        .api
        .edit(&path, &json!([{"op": "remove", "path": "/metadata/ownerReferences"}]))
        .unwrap();
    let left = fixture.wait_until_idle().len();
    // Any change of the job triggers a reconciliation.
    fixture.patch(&json!({"inference": {"replicas": 2}}));
    fixture.wait_for("Stalled");
    let later: Vec<_> = fixture.wait_until_idle().split_off(left);
    assert!(
        later.iter().all(|write| ["rljobs", "events"].contains(&write.call.resource.as_str())),
        "the operator wrote other objects of the job:\n{}",
        format_writes(&later)
    );
    assert!(
        fixture.api.get(&path).unwrap()["metadata"]["ownerReferences"].is_null(),
        "the operator adopted the child"
    );

    fixture.patch(&json!({"inference": {"replicas": 1}}));
    fixture
        .api
        .edit(&path, &json!([{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]))
        .unwrap();
    wait_until("the job to be ready", LIMIT, || Ok(is_true(&fixture.job(), "Ready")))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    fixture.wait_for_end_state(&state, "the job owns the child again");
    assert_eq!(differences(&fixture.end_state(), &state), Vec::<String>::new());
}
