//! Rules of the teacher of `distillation`.

use serde_json::json;

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
    let expected = "needs rollout.temperature 1, at which servers compute log-probabilities of \
        given tokens; found 0.5";
    assert_eq!(found, [format!("{field}.server: {expected}")]);
}
