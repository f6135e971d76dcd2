//! Rules of teachers.

use serde_json::{Value, json};

use super::super::super::test_support::merge;
use super::problems_with;

#[test]
fn a_teacher_has_one_source_and_a_served_one_computes_at_temperature_1() {
    let with = |teacher: serde_json::Value, temperature: f64| {
        problems_with(&json!({
            "algorithm": {"grpo": null, "distillation": {"teacher": teacher}},
            "rollout": {"temperature": temperature},
        }))
    };
    let field = "spec.algorithm.distillation.teacher";
    let (path, server) = (json!("/t"), json!({"url": "http://teacher"}));
    assert_eq!(with(json!({"path": path}), 0.5), Vec::<String>::new());
    assert_eq!(with(json!({"server": server}), 1.0), Vec::<String>::new());
    let found = with(json!({"path": path, "server": server}), 1.0);
    assert_eq!(
        found,
        [format!("{field}: set exactly one of path and server, found path and server")]
    );
    let found = with(json!({"server": server}), 0.5);
    let expected = "needs rollout.temperature 1, at which a served teacher computes \
        log-probabilities of given tokens; found 0.5";
    assert_eq!(found, [format!("{field}.server: {expected}")]);
    let on_engines = json!({"path": path, "engines": {}, "calls": {"timeoutSeconds": 60}});
    assert_eq!(with(on_engines.clone(), 1.0), Vec::<String>::new());
    assert_eq!(with(on_engines, 0.5), [format!("{field}.engines: {expected}")]);
}

#[test]
fn engines_of_a_teacher_serve_its_folder_and_hold_it_alone() {
    let of = |teacher: Value, parts: Value| {
        let mut spec = json!({
            "algorithm": {"grpo": null, "distillation": {"teacher": {
                "path": "/t", "engines": {},
            }}},
        });
        merge(&mut spec["algorithm"]["distillation"]["teacher"], &teacher);
        merge(&mut spec, &parts);
        problems_with(&spec)
    };
    let field = "spec.algorithm.distillation.teacher";
    let none = || json!({});
    for (teacher, expected) in [
        (
            json!({"path": null, "server": {"url": "http://t"}}),
            ".path: is missing: the folder of the model of engines",
        ),
        (json!({"engines": {"replicas": 0}}), ".engines.replicas: must be at least 1"),
        (
            json!({"engines": {"minReplicas": 1}}),
            ".engines.minReplicas: has no effect: a queue admits all of them; remove it",
        ),
        (
            json!({"engines": null, "calls": {"retries": 1}}),
            ".calls: are those of engines: set engines, or remove it",
        ),
        (
            json!({"path": "/rljob/runs/lab/../x/export"}),
            ".path: must not contain `..` below /rljob/runs",
        ),
    ] {
        assert_eq!(of(teacher, none()), [format!("{field}{expected}")]);
    }
    let group = json!({"trainer": {"groups": [{"name": "frozen", "roles": ["Teacher"]}]}});
    let held = "algorithm.distillation has no Teacher model: its teacher is on engines of the \
        job, which needs no group; remove it";
    assert_eq!(of(none(), group), [format!("spec.trainer.groups[0].roles[0]: {held}")]);
    let sglang = json!({"inference": {"sglang": {}}});
    let unset = "must set sglang, or embedded for a small model on CPUs: inference runs SGLang, \
        and nothing is inherited";
    assert_eq!(of(none(), sglang), [format!("{field}.engines: {unset}")]);
}

#[test]
fn a_teacher_beside_rewards_has_the_same_rules_and_replaces_the_reference_model() {
    let with = |parts: Value| {
        let mut spec = json!({"algorithm": {"grpo": {
            "distillation": {"teacher": {"path": "/t"}, "coefficient": 0.1},
        }}});
        merge(&mut spec, &parts);
        problems_with(&spec)
    };
    assert_eq!(with(json!({})), Vec::<String>::new());
    let field = "spec.algorithm.grpo.distillation.teacher";
    let served = json!({"path": null, "server": {"url": "http://t"}});
    let served = json!({"algorithm": {"grpo": {"distillation": {"teacher": served}}}});
    assert_eq!(with(served.clone()), Vec::<String>::new());
    let mut warm = served;
    warm["rollout"] = json!({"temperature": 0.5});
    let expected = "needs rollout.temperature 1, at which a served teacher computes \
        log-probabilities of given tokens; found 0.5";
    assert_eq!(with(warm), [format!("{field}.server: {expected}")]);
    let excluded = "is not used with distillation: the teacher takes the place of the reference \
        model; remove one of them";
    let kl = json!({"algorithm": {"grpo": {"klCoefficient": 0.1}}});
    assert_eq!(with(kl), [format!("spec.algorithm.grpo.klCoefficient: {excluded}")]);
    let group = |role: &str| json!({"trainer": {"groups": [{"name": "frozen", "roles": [role]}]}});
    assert_eq!(with(group("Teacher")), Vec::<String>::new());
    let other = "algorithm.grpo has no Reference model: its learners hold Teacher; set that role";
    assert_eq!(with(group("Reference")), [format!("spec.trainer.groups[0].roles[0]: {other}")]);
}

#[test]
fn off_policy_distillation_needs_given_completions_and_a_teacher_in_the_learners() {
    let of = |parts: Value| {
        let mut spec = json!({
            "algorithm": {"grpo": null, "distillation": {
                "teacher": {"path": "/t"}, "offPolicy": {"topK": 8, "batchSize": 6},
            }},
            "dataset": {"train": {"answer": null, "completion": "{{a}}"}},
            "rewards": [], "inference": {"replicas": 0},
        });
        merge(&mut spec, &parts);
        problems_with(&spec)
    };
    assert_eq!(of(json!({})), Vec::<String>::new());
    let path = "spec.algorithm.distillation";
    let off = |distillation: Value| json!({"algorithm": {"distillation": distillation}});
    assert_eq!(
        of(off(json!({"groupSize": 2, "lossAggregation": "Sequence"}))),
        [
            format!("{path}.groupSize: is not used with offPolicy; remove it"),
            format!("{path}.lossAggregation: is not used with offPolicy; remove it"),
        ]
    );
    let needs = "needs teacher.path without teacher.engines: learners compute the teacher's most \
        likely tokens";
    let on_engines = json!({"teacher": {"engines": {}}});
    assert_eq!(of(off(on_engines)), [format!("{path}.offPolicy: {needs}")]);
    let served = json!({"teacher": {"path": null, "server": {"url": "http://t"}}});
    assert_eq!(of(off(served)), [format!("{path}.offPolicy: {needs}")]);
    let split = "6 sequences cannot be split into training.minibatches = 4 equal parts";
    let four = json!({"training": {"minibatches": 4}});
    assert_eq!(of(four), [format!("{path}.offPolicy.batchSize: {split}")]);
    let group = json!({"trainer": {"groups": [{"name": "frozen", "roles": ["Teacher"]}]}});
    let held = "algorithm.distillation has no Teacher model: with offPolicy its learners hold the \
        teacher; remove the group";
    assert_eq!(of(group), [format!("spec.trainer.groups[0].roles[0]: {held}")]);
    let missing = json!({"dataset": {"train": {"completion": null}}});
    let learns = "spec.dataset.train.completion: is missing; algorithm.distillation learns it";
    assert_eq!(of(missing), [learns]);
}
