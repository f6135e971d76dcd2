//! The calls of a step are those of its plan, in its order.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::DataKind;
use rljob_crds::dataflow::{Call, Kind, LearnerCall, Phase, plan};
use serde_json::{Value, json};

use super::fixture::{batch, small_model, spec, trainer};
use super::pairs;
use crate::ranks::Ranks;

/// Metrics with the seconds of the calls in the plan's part of the learners.
fn planned(spec: &RLJobSpec) -> Vec<&'static str> {
    let plan = plan(spec).unwrap();
    let training = plan.calls().filter(|call| call.phase == Phase::Training);
    training.map(|call| call.seconds.unwrap()).collect()
}

/// Those of a step that a trainer made, and its updates of each model.
fn recorded(spec: RLJobSpec, minibatches: u32) -> Vec<&'static str> {
    let folder = small_model();
    let has_pairs = spec.algorithm.capabilities().unwrap().data() == DataKind::Pairs;
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    let batch =
        if has_pairs { pairs::batch(1, minibatches, (0, 1)) } else { batch(1, minibatches, 0, 1) };
    let report = trainer.step(1, &batch).unwrap();
    let calls: Vec<&str> = trainer.calls.0.iter().map(|(call, _)| call.seconds()).collect();
    let reported = LearnerCall::ALL.map(LearnerCall::seconds);
    let reported = reported.into_iter().filter(|name| report.get(name) > Some(0.0)).count();
    assert_eq!(reported, calls.len(), "{report:?}");
    calls
}

/// A batch has two prompt groups, or four pairs.
fn assert_planned(algorithm: &Value, minibatches: u32, expected: &[&str]) {
    let mut spec = spec(algorithm, "Random", minibatches);
    spec.rollout.batch_size = 2;
    let planned = planned(&spec);
    let seconds: Vec<String> = expected.iter().map(|name| format!("{name}Seconds")).collect();
    assert_eq!(planned, seconds, "{algorithm}");
    assert_eq!(recorded(spec, minibatches), planned, "{algorithm}");
}

#[test]
fn a_step_makes_the_calls_of_its_plan_in_its_order() {
    let grpo = |settings: Value| json!({ "grpo": settings });
    let update = ["advantage", "policy"];
    let proximal = ["proximal", "advantage", "policy"];
    assert_planned(&grpo(json!({})), 1, &update);
    assert_planned(&grpo(json!({})), 2, &proximal);
    assert_planned(&grpo(json!({"proximalLogprobs": "Sampler"})), 2, &update);
    assert_planned(&grpo(json!({"secondMomentLimit": 0.1})), 1, &proximal);
    assert_planned(&grpo(json!({"ratioLevel": "Sequence"})), 2, &proximal);
    let reference = ["reference", "proximal", "advantage", "policy"];
    assert_planned(&grpo(json!({"klCoefficient": 0.1})), 2, &reference);
    assert_planned(&json!({"ppo": {}}), 1, &["value", "advantage", "policy", "critic"]);
    let all = ["reference", "proximal", "value", "advantage", "policy", "critic"];
    assert_planned(&json!({"ppo": {"klCoefficient": 0.1, "epochs": 2}}), 1, &all);
    let head = json!({"ppo": {"valueHead": {}}});
    assert_planned(&head, 1, &["value", "advantage", "policy"]);
    assert_planned(&head, 2, &proximal);
    assert_planned(&json!({"sft": {}}), 2, &update);
    assert_planned(&json!({"dpo": {}}), 2, &["reference", "advantage", "policy"]);
    assert_planned(&json!({"orpo": {}}), 2, &update);
    assert_planned(&json!({"rewardModel": {}}), 1, &update);
}

#[test]
fn adapters_have_the_calls_of_the_algorithm() {
    let mut spec = spec(&json!({"grpo": {"klCoefficient": 0.1}}), "Random", 1);
    spec.lora = Some(serde_json::from_value(json!({"rank": 2})).unwrap());
    spec.rollout.batch_size = 2;
    let planned = planned(&spec);
    assert_eq!(planned, ["referenceSeconds", "advantageSeconds", "policySeconds"]);
    assert_eq!(recorded(spec, 1), planned);
}

#[test]
fn log_probabilities_of_a_served_teacher_need_no_pass_of_the_learners() {
    let teacher = json!({"server": {"url": "http://teacher"}});
    let mut spec = spec(&json!({"distillation": {"teacher": teacher}}), "Random", 1);
    spec.rollout.batch_size = 2;
    let folder = small_model();
    let mut trainer = trainer(spec.clone(), folder.path(), Ranks::alone());
    let mut batch = batch(1, 1, 0, 1);
    batch.teacher_logprobs_T = Some(batch.sampler_logprobs_T.clone());
    trainer.step(1, &batch).unwrap();
    let recorded: Vec<&str> = trainer.calls.0.iter().map(|(call, _)| call.seconds()).collect();
    assert_eq!(recorded, planned(&spec));
    let plan = plan(&spec).unwrap();
    let models: Vec<&Call> = plan.calls().filter(|call| call.kind == Kind::Inference).collect();
    assert_eq!(models.len(), 1, "{models:?}");
}

#[test]
fn objectives_have_the_signals_and_passes_of_their_algorithms() {
    let bounds = json!({"upper": 2, "level": "Sequence"});
    let algorithms = [
        json!({"grpo": {}}),
        json!({"grpo": {"klCoefficient": 0.1, "ratioLevel": "SequenceToken"}}),
        json!({"grpo": {"distillation": {"teacher": {"path": "/t"}}, "ratioLevel": "Sequence"}}),
        json!({"grpo": {"behaviorWeight": bounds, "ratioLevel": "Sequence"}}),
        json!({"grpo": {"proximalLogprobs": "Sampler", "ratioLevel": "Sequence"}}),
        json!({"ppo": {"epochs": 3, "klCoefficient": 0.1}}),
        json!({"sft": {}}),
        json!({"dpo": {}}),
        json!({"orpo": {}}),
        json!({"rewardModel": {}}),
        json!({"distillation": {"teacher": {"path": "/t"}}}),
        json!({"distillation": {"teacher": {"path": "/t"}, "offPolicy": {"topK": 3}}}),
    ];
    for (algorithm, staleness, updates) in algorithms
        .iter()
        .flat_map(|algorithm| [0, 2].map(|staleness| (algorithm, staleness)))
        .flat_map(|(algorithm, staleness)| [1, 4].map(|updates| (algorithm, staleness, updates)))
    {
        let mut spec = spec(algorithm, "Random", 1);
        spec.rollout.max_staleness = staleness;
        let resolved = spec.algorithm.resolve().unwrap();
        let objective = crate::objective::new(resolved, &spec.rollout);
        let found = (objective.signals(updates), objective.epochs());
        let expected = (resolved.signals(&spec.rollout, updates), resolved.epochs());
        assert_eq!(found, expected, "{algorithm}, {updates} updates");
    }
}
