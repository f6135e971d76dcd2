//! Engines that span pods: the pods of one are replaced together, those of others stay.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::LIMIT;

/// UIDs of the engines' pods, by ordinal.
fn uids(fixture: &Fixture) -> BTreeMap<String, String> {
    let pods = fixture.list("api/v1", "pods");
    let metadata = |pod: &Value, key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    let name =
        |pod: &Value| metadata(pod, "name").strip_prefix("sample-inference-").map(Into::into);
    pods.iter().filter_map(|pod| Some((name(pod)?, metadata(pod, "uid")))).collect()
}

/// Reports a running container of a pod, as its kubelet does.
fn start_container(fixture: &Fixture, ordinal: &str, id: &str) {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let container = json!({
        "name": "engine", "containerID": format!("containerd://{id}"), "state": running,
        "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
    });
    let path = fixture.path("api/v1", &format!("pods/sample-inference-{ordinal}"));
    let mut conditions = fixture.api.get(&path).unwrap()["status"]["conditions"].take();
    for condition in conditions.as_array_mut().unwrap() {
        condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    }
    let status = json!({"containerStatuses": [container], "conditions": conditions});
    fixture.api.patch(&format!("{path}/status"), &json!({"status": status})).unwrap();
}

/// Starts the containers of running pods, and waits until their gates record them as synced.
fn form(fixture: &Fixture, containers: [(&str, &str); 2]) {
    for (ordinal, id) in containers {
        fixture.running_pod(&format!("sample-inference-{ordinal}"));
        start_container(fixture, ordinal, id);
    }
    let [first, second] = containers.map(|(_, id)| format!("containerd://{id}"));
    let message = format!("containers {first}, {second} hold weights of the run");
    let is_recorded = |ordinal: &str| {
        let path = fixture.path("api/v1", &format!("pods/sample-inference-{ordinal}"));
        let pod = fixture.api.get(&path)?;
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        Ok::<_, anyhow::Error>(conditions.any(|condition| {
            condition["type"] == "rljob.dev/weights-synced"
                && condition["status"] == "True"
                && condition["message"] == message.as_str()
        }))
    };
    wait_until(&message, LIMIT, || {
        Ok(is_recorded(containers[0].0)? && is_recorded(containers[1].0)?)
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
}

/// Waits until exactly these pods have other UIDs than before.
fn wait_for_replacements(fixture: &Fixture, before: &BTreeMap<String, String>, expected: &[&str]) {
    let is_replaced = || {
        let now = uids(fixture);
        let replaced = now.iter().filter(|(ordinal, uid)| before.get(*ordinal) != Some(uid));
        let replaced: Vec<&String> = replaced.map(|(ordinal, _)| ordinal).collect();
        Ok(now.len() == before.len() && replaced == expected)
    };
    wait_until(&format!("replacements of {expected:?}"), LIMIT, is_replaced)
        .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
}

#[test]
fn the_pods_of_an_engine_are_replaced_together_when_one_is_lost_or_restarts() {
    let engines = json!({"inference": {"sglang": {}, "replicas": 2, "podsPerReplica": 2}});
    let fixture = Fixture::running("spanning", &json!({"spec": engines}));
    let names = uids(&fixture).into_keys().collect::<Vec<_>>();
    assert_eq!(names, ["0", "1", "2", "3"]);
    form(&fixture, [("0", "a"), ("1", "b")]);
    form(&fixture, [("2", "c"), ("3", "d")]);
    let status = fixture.job()["status"]["inference"].take();
    assert_eq!(
        (&status["desired"], &status["ready"], &status["replicas"], &status["selector"]),
        (&json!(2), &json!(2), &json!(2), &json!(""))
    );
    let engines = status["engines"].as_array().unwrap().iter();
    let mut names: Vec<&str> = engines.map(|engine| engine["name"].as_str().unwrap()).collect();
    // Those without a report come first.
    names.sort_unstable();
    assert_eq!(names, ["sample-inference-0", "sample-inference-2"]);

    let before = uids(&fixture);
    fixture.lose_pod("sample-inference-3");
    wait_for_replacements(&fixture, &before, &["2", "3"]);
    let incidents = fixture.job()["status"]["incidents"].take();
    let replaced = incidents.as_array().unwrap().iter().find(|incident| {
        incident["reason"] == "EngineIncomplete" && incident["uid"] == before["2"].as_str()
    });
    assert!(replaced.is_some(), "{incidents:#}");
    assert_eq!(fixture.job()["status"]["restarts"], 0);

    let before = uids(&fixture);
    form(&fixture, [("2", "e"), ("3", "f")]);
    assert_eq!(uids(&fixture), before, "new pods are not replaced again");
    start_container(&fixture, "0", "restarted");
    wait_for_replacements(&fixture, &before, &["0", "1"]);
}
