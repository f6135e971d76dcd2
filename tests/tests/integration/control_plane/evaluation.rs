//! Engines that only evaluate, and engines of a reward model and of a teacher: their objects, the
//! addresses that the coordinator gets, and the status.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::LIMIT;

/// Names of engines that the coordinator got in a field of its desired state.
fn named(fixture: &Fixture, field: &str) -> Vec<String> {
    let desired = fixture.pods.run.lock().desired.clone();
    let engines = desired[field].as_array().cloned().unwrap_or_default();
    engines.iter().filter_map(|engine| engine["name"].as_str().map(str::to_owned)).collect()
}

/// Checks that a job with two engines of a role has them, beside one of rollouts.
fn check(role: &str, condition: &str, spec: &Value) {
    let mut fixture = Fixture::new(role, &json!({ "spec": spec }));
    fixture.pods.run.lock().is_newest = true;
    fixture.start_operator();
    fixture.wait_for("Ready");
    let expected: Vec<String> = (0..2).map(|index| format!("sample-{role}-{index}")).collect();
    let field = format!("{role}Engines");
    // The simulated coordinator runs without engines, so that the addresses of either role can come
    // first, after the condition.
    let has_addresses = || {
        let names = [named(&fixture, &field), named(&fixture, "engines")];
        Ok(names == [expected.clone(), vec!["sample-inference-0".to_owned()]])
    };
    wait_until("the addresses of engines", LIMIT, has_addresses)
        .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    fixture.wait_for(condition);
    fixture.wait_for_status(&json!({role: {"desired": 2, "ready": 2}}));
    let own = format!("sample-{role}");
    let names = |path: &str, kind: &str| {
        let objects = fixture.list(path, kind);
        let all = objects.iter().filter_map(|object| object["metadata"]["name"].as_str());
        all.filter(|name| *name == own).count()
    };
    let kinds = [
        names("apis/apps/v1", "statefulsets"),
        names("api/v1", "services"),
        names("apis/policy/v1", "poddisruptionbudgets"),
    ];
    assert_eq!(kinds, [1, 1, 1]);
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    assert_eq!(fixture.job()["status"][role], json!({"desired": 0, "ready": 0}));
}

#[test]
fn engines_that_only_evaluate_are_a_role_with_pods() {
    let data = json!({"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer"});
    let spec = json!({
        "dataset": {"evaluation": data}, "evaluation": {"engines": {"replicas": 2}},
    });
    check("evaluation", "EvaluationReady", &spec);
}

#[test]
fn engines_of_a_reward_model_are_a_role_with_pods() {
    let model = json!({
        "path": "/data/judge", "engines": {"replicas": 2}, "text": "{{completion}}",
    });
    let spec = json!({"rewards": [{"name": "scored", "model": model}]});
    check("reward", "RewardReady", &spec);
}

#[test]
fn engines_of_a_teacher_are_a_role_with_pods() {
    let teacher = json!({"path": "/data/teacher", "engines": {"replicas": 2}});
    let algorithm = json!({"grpo": null, "distillation": {"teacher": teacher}});
    check("teacher", "TeacherReady", &json!({"algorithm": algorithm, "rewards": null}));
}
