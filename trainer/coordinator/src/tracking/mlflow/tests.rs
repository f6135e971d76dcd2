//! Tests of requests to MLflow.

use super::*;
use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};

#[test]
fn metrics_of_evaluations_have_a_prefix_and_the_loss_of_a_step_is_last() {
    let records = Records {
        steps: vec![StepMetrics::with_scalars(7, [(LOSS, 0.5), ("reward", 1.0)])],
        evaluations: vec![EvaluationMetrics {
            step: 5,
            greedy: Some(0.25),
            ..EvaluationMetrics::default()
        }],
    };
    let found = metrics(&records, 9).unwrap();
    let named = |key: &str| found.iter().find(|metric| metric.key == key).unwrap();
    let metric = |key: &str, value, step| Metric { key: key.to_owned(), value, timestamp: 9, step };
    assert_eq!(*named("evaluation/greedy"), metric("evaluation/greedy", 0.25, 5));
    assert_eq!(*named("reward"), metric("reward", 1.0, 7));
    assert_eq!(found.last(), Some(&metric("loss", 0.5, 7)));
}

#[test]
fn parameters_are_the_settings_of_training_without_rewards_and_storage() {
    let spec = json!({
        "algorithm": {"grpo": {"groupSize": 8}}, "training": {"steps": 3},
        "model": {"path": "é".repeat(400)}, "rewards": [{"http": {"url": "secret"}}],
    });
    let expected = [
        json!({"key": "model.path", "value": "é".repeat(250)}),
        json!({"key": "algorithm.grpo.groupSize", "value": "8"}),
        json!({"key": "training.steps", "value": "3"}),
    ];
    assert_eq!(parameters(&spec), expected);
}

#[test]
fn the_position_is_read_from_the_newest_values_of_the_server() {
    let run: MlflowRun = serde_json::from_value(json!({
        "info": {"run_id": "a", "status": "RUNNING", "user_id": ""},
        "data": {"metrics": [
            {"key": "loss", "value": 1.0, "timestamp": 1, "step": 12},
            {"key": "reward", "value": 1.0, "timestamp": 1, "step": 13},
            {"key": "evaluation/greedy", "value": 1.0, "timestamp": 1, "step": 10},
        ]},
    }))
    .unwrap();
    let position = Connected::from(run).position;
    assert_eq!(position, Position { step: 12, evaluation: Some(10) });
}
