//! What others do to a job's objects: what is removed or altered comes back, and what is no longer
//! the job's is left alone and said.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::LIMIT;
use super::stage::{Stage, differences, is_true, listed};

/// Children whose changes the operator is told of.
const WATCHED: [(&str, &str); 6] = [
    ("apis/apps/v1", "statefulsets/sample-trainer"),
    ("apis/apps/v1", "statefulsets/sample-coordinator"),
    ("apis/apps/v1", "statefulsets/sample-inference"),
    ("api/v1", "services/sample-trainer"),
    ("apis/networking.k8s.io/v1", "networkpolicies/sample"),
    ("apis/policy/v1", "poddisruptionbudgets/sample-inference"),
];

#[test]
fn a_child_that_somebody_removes_comes_back() {
    let stage = Stage::running("removed", &json!({}));
    stage.rest();
    let state = stage.end_state();
    for (group, child) in WATCHED {
        let uid = || Ok(stage.api.get(&stage.path(group, child))?["metadata"]["uid"].clone());
        let before: Value = uid().unwrap();
        stage
            .api
            .delete(&stage.path(group, child), &json!({"propagationPolicy": "Background"}))
            .unwrap();
        wait_until(&format!("another {child}"), LIMIT, || uid().map(|after| after != before))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", stage.words()));
    }
    stage.wait_for("Ready");
    let mut epoch = state;
    // Its coordinator is another one now.
    epoch.get_mut("rljobs/sample").unwrap()["status"]["epoch"] = json!(2);
    stage.wait_to_be(&epoch, "every child was removed once");
}

#[test]
fn labels_that_somebody_takes_off_or_changes_come_back() {
    let stage = Stage::running("labels", &json!({}));
    stage.rest();
    let state = stage.end_state();
    for (group, child) in WATCHED {
        let labels = json!({"metadata": {"labels": {"rljob.dev/job": null, "app.kubernetes.io/instance": "another"}}});
        stage.api.patch(&stage.path(group, child), &labels).unwrap();
    }
    stage.wait_to_be(&state, "every child lost its labels");
}

#[test]
fn a_child_that_is_no_longer_the_jobs_is_left_alone_until_it_is_again() {
    let stage = Stage::running("disowned", &json!({}));
    stage.rest();
    let state = stage.end_state();
    let path = stage.path("apis/apps/v1", "statefulsets/sample-trainer");
    let owners = stage.api.get(&path).unwrap()["metadata"]["ownerReferences"].take();
    stage.api.edit(&path, &json!([{"op": "remove", "path": "/metadata/ownerReferences"}])).unwrap();
    let left = stage.rest().len();
    // Any change of the job is a reason to look.
    stage.patch(&json!({"inference": {"replicas": 2}}));
    stage.wait_for("Stalled");
    let later: Vec<_> = stage.rest().split_off(left);
    assert!(
        later.iter().all(|write| ["rljobs", "events"].contains(&write.call.resource.as_str())),
        "something of the job was written:\n{}",
        listed(&later)
    );
    assert!(
        stage.api.get(&path).unwrap()["metadata"]["ownerReferences"].is_null(),
        "it was adopted"
    );

    stage.patch(&json!({"inference": {"replicas": 1}}));
    stage
        .api
        .edit(&path, &json!([{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]))
        .unwrap();
    wait_until("the job to go on", LIMIT, || Ok(is_true(&stage.job(), "Ready")))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", stage.words()));
    stage.wait_to_be(&state, "the child is the job's again");
    assert_eq!(differences(&stage.end_state(), &state), Vec::<String>::new());
}
