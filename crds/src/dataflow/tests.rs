//! Plans of specs as lines, and calls that cannot be ordered.

use serde_json::{Value, json};

use super::*;
use crate::RLJobSpec;

fn spec(parts: Value) -> RLJobSpec {
    let mut spec = json!({
        "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
        "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}},
        "training": {"steps": 9, "minibatches": 4},
        "rewards": [{"name": "right", "math": {}}],
    });
    let Value::Object(parts) = parts else { panic!("{parts}") };
    spec.as_object_mut().unwrap().extend(parts);
    serde_json::from_value(spec).unwrap()
}

fn names(data: &[Data]) -> String {
    data.iter().map(|data| data.name()).collect::<Vec<_>>().join(" ")
}

/// A line for each call: stage and lane, name, workers, inputs and outputs.
fn lines(parts: Value) -> Vec<String> {
    let plan = plan(&spec(parts)).unwrap();
    let mut lines = Vec::new();
    for (number, stage) in (1..).zip(&plan.stages) {
        for (letter, lane) in ('a'..).zip(&stage.lanes) {
            lines.extend(lane.calls.iter().map(|call| {
                assert_eq!(call.workers, lane.workers);
                let later = names(&call.later_inputs);
                let later = if later.is_empty() { later } else { format!(" [{later}]") };
                let (inputs, outputs) = (names(&call.inputs), names(&call.outputs));
                let (name, workers) = (&call.name, &call.workers);
                format!("{number}{letter} {name} ({workers}): {inputs}{later} -> {outputs}")
            }));
        }
    }
    lines
}

const ROLLOUTS: [&str; 5] = [
    "1a sync (learners): policyWeights -> engineWeights",
    "2a generate (engines): prompts engineWeights -> completions behaviorLogprobs",
    "3a reward right (coordinator): prompts completions -> rewards",
    "4a assemble (coordinator): completions rewards behaviorLogprobs -> samples",
    "5a pack (coordinator): samples -> batch",
];

fn after_rollouts(learners: &[&str]) -> Vec<String> {
    ROLLOUTS.iter().chain(learners).map(|&line| line.to_owned()).collect()
}

#[test]
fn a_step_of_grpo_with_one_update_has_no_pass_without_gradients() {
    let parts = json!({"algorithm": {"grpo": {}}, "training": {"steps": 9}});
    let expected = after_rollouts(&[
        "6a advantages (learners): batch -> advantages lossWeights",
        "7a train policy (learners): batch policyWeights advantages lossWeights -> \
         newPolicyWeights",
    ]);
    assert_eq!(lines(parts), expected);
}

#[test]
fn ppo_infers_reference_policy_and_critic_one_after_another_on_the_learners() {
    let expected = after_rollouts(&[
        "6a infer reference (learners): batch -> referenceLogprobs",
        "6a infer policy (learners): batch policyWeights -> proximalLogprobs",
        "6a infer critic (learners): batch criticWeights -> values",
        "7a advantages (learners): batch referenceLogprobs proximalLogprobs values -> \
         advantages returns lossWeights",
        "8a train policy (learners): batch policyWeights referenceLogprobs proximalLogprobs \
         advantages lossWeights -> newPolicyWeights",
        "8a train critic (learners): batch criticWeights values returns lossWeights -> \
         newCriticWeights",
    ]);
    let ppo = json!({"algorithm": {"ppo": {"klCoefficient": 0.1, "epochs": 2}}});
    assert_eq!(lines(ppo.clone()), expected);
    let plan = plan(&spec(ppo)).unwrap();
    let numbers = (plan.batch_size, plan.group_size, plan.updates, plan.steps_ahead);
    assert_eq!(numbers, (32, 1, 8, 0));
    assert_eq!(plan.given, [Data::Prompts, Data::PolicyWeights, Data::CriticWeights]);
}

#[test]
fn the_calls_of_the_policy_compute_and_train_its_value_head() {
    let of = |parts: Value| lines(parts)[ROLLOUTS.len()..].to_vec();
    let head = json!({"ppo": {"valueHead": {}}});
    let expected = [
        "6a infer policy (learners): batch policyWeights criticWeights -> proximalLogprobs values",
        "7a advantages (learners): batch proximalLogprobs values -> advantages returns lossWeights",
        "8a train policy (learners): batch policyWeights criticWeights proximalLogprobs values \
         advantages returns lossWeights -> newPolicyWeights newCriticWeights",
    ];
    assert_eq!(of(json!({"algorithm": head.clone()})), expected);
    let one_update = json!({"algorithm": head, "training": {"steps": 9}});
    let expected = [
        "6a infer policy (learners): batch policyWeights criticWeights -> values",
        "7a advantages (learners): batch values -> advantages returns lossWeights",
        "8a train policy (learners): batch policyWeights criticWeights values advantages returns \
         lossWeights -> newPolicyWeights newCriticWeights",
    ];
    assert_eq!(of(one_update), expected);
    let warm = json!({"ppo": {"valueHead": {}, "criticWarmupSteps": 3}});
    let plan = plan(&spec(json!({"algorithm": warm}))).unwrap();
    let notes: Vec<_> = plan.calls().filter_map(|call| call.note.as_deref()).collect();
    assert_eq!(notes.last(), Some(&"steps 1 to 3 update the value head only"));
}

#[test]
fn pairs_need_no_engines() {
    let dpo = json!({"algorithm": {"dpo": {}}, "rewards": []});
    let expected = [
        "1a pack (coordinator): pairs -> batch",
        "2a infer reference (learners): batch -> referenceLogprobs",
        "2a weights (learners): batch -> lossWeights",
        "3a train policy (learners): batch policyWeights referenceLogprobs lossWeights -> \
         newPolicyWeights",
    ];
    assert_eq!(lines(dpo), expected);
    let expected = [
        "1a pack (coordinator): pairs -> batch",
        "2a weights (learners): batch -> lossWeights",
        "3a train policy (learners): batch policyWeights lossWeights -> newPolicyWeights",
    ];
    assert_eq!(lines(json!({"algorithm": {"orpo": {}}, "rewards": []})), expected);
    let expected = [
        "1a pack (coordinator): pairs -> batch",
        "2a weights (learners): batch -> lossWeights",
        "3a train reward (learners): batch policyWeights lossWeights -> newPolicyWeights",
    ];
    assert_eq!(lines(json!({"algorithm": {"rewardModel": {}}, "rewards": []})), expected);
}

#[test]
fn demonstrations_are_packed_and_trained_on() {
    let expected = [
        "1a pack (coordinator): demonstrations -> batch",
        "2a weights (learners): batch -> lossWeights",
        "3a train policy (learners): batch policyWeights lossWeights -> newPolicyWeights",
    ];
    let parts = json!({"algorithm": {"sft": {}}, "rewards": [], "lora": {"rank": 4}});
    let plan = plan(&spec(parts.clone())).unwrap();
    assert_eq!(lines(parts), expected);
    let notes: Vec<_> = plan.calls().filter_map(|call| call.note.as_deref()).collect();
    assert_eq!(notes, ["trains adapters of rank 4 over frozen weights"]);
}

#[test]
fn a_teacher_is_a_model_of_the_learners_of_engines_or_of_a_server() {
    let job = |teacher: Value| {
        let algorithm = json!({"distillation": {"teacher": teacher}});
        json!({"algorithm": algorithm, "rewards": [], "training": {"steps": 9}})
    };
    let common = [
        ROLLOUTS[0],
        ROLLOUTS[1],
        "3a assemble (coordinator): completions behaviorLogprobs -> samples",
    ];
    let held = [
        "4a pack (coordinator): samples -> batch",
        "5a infer teacher (learners): batch -> teacherLogprobs",
        "6a advantages (learners): batch teacherLogprobs -> advantages lossWeights",
        "7a train policy (learners): batch policyWeights teacherLogprobs advantages lossWeights \
         -> newPolicyWeights",
    ];
    let served = [
        "4a infer teacher (teacher server): samples -> teacherLogprobs",
        "5a pack (coordinator): samples teacherLogprobs -> batch",
        "6a advantages (learners): batch -> advantages lossWeights",
        "7a train policy (learners): batch policyWeights advantages lossWeights -> \
         newPolicyWeights",
    ];
    let all = |rest: [&str; 4]| -> Vec<String> {
        common.iter().chain(&rest).map(|&line| line.to_owned()).collect()
    };
    assert_eq!(lines(job(json!({"path": "/t"}))), all(held));
    assert_eq!(lines(job(json!({"server": {"url": "http://t"}}))), all(served));
    let on_engines = job(json!({"path": "/t", "engines": {"replicas": 2}}));
    let line = "4a infer teacher (teacher engines): samples -> teacherLogprobs";
    assert_eq!(lines(on_engines.clone()), all([line, served[1], served[2], served[3]]));
    let plan = plan(&spec(on_engines)).unwrap();
    assert_eq!((plan.engines, plan.teacher_engines, plan.reward_engines), (1, 2, 0));
}

#[test]
fn a_teacher_beside_rewards_is_an_input_of_the_loss_and_not_of_the_advantages() {
    let job = |teacher: Value| {
        let algorithm = json!({"grpo": {"distillation": {"teacher": teacher}}});
        json!({"algorithm": algorithm, "training": {"steps": 9}})
    };
    let held = [
        "5a pack (coordinator): samples -> batch",
        "6a infer teacher (learners): batch -> teacherLogprobs",
        "6a advantages (learners): batch -> advantages lossWeights",
        "7a train policy (learners): batch policyWeights teacherLogprobs advantages lossWeights \
         -> newPolicyWeights",
    ];
    assert_eq!(lines(job(json!({"path": "/t"})))[4..], held);
    let served = [
        "5a infer teacher (teacher server): samples -> teacherLogprobs",
        "6a pack (coordinator): samples teacherLogprobs -> batch",
        "7a advantages (learners): batch -> advantages lossWeights",
        "8a train policy (learners): batch policyWeights advantages lossWeights -> \
         newPolicyWeights",
    ];
    assert_eq!(lines(job(json!({"server": {"url": "http://t"}})))[4..], served);
    let mut grouped = job(json!({"path": "/t"}));
    grouped["trainer"] = json!({"groups": [{"name": "teacher", "roles": ["Teacher"]}]});
    let infer = "6a infer teacher (group teacher): batch -> teacherLogprobs";
    assert!(lines(grouped.clone()).contains(&infer.to_owned()), "{:?}", lines(grouped));
}

#[test]
fn a_teacher_of_given_completions_infers_its_top_tokens_before_training() {
    let distillation = json!({"teacher": {"path": "/t"}, "offPolicy": {"batchSize": 16}});
    let parts = json!({"algorithm": {"distillation": distillation}, "rewards": []});
    let expected = [
        "1a pack (coordinator): demonstrations -> batch",
        "2a infer teacher (learners): batch -> teacherTopTokens",
        "2a weights (learners): batch -> lossWeights",
        "3a train policy (learners): batch policyWeights teacherTopTokens lossWeights -> \
         newPolicyWeights",
    ];
    assert_eq!(lines(parts.clone()), expected);
    let plan = plan(&spec(parts)).unwrap();
    let numbers = (plan.batch_size, plan.group_size, plan.updates, plan.steps_ahead);
    assert_eq!(numbers, (16, 1, 4, 0));
}

#[test]
fn a_group_infers_its_model_before_the_calls_of_the_learners() {
    let group = json!({"groups": [{"name": "frozen", "roles": ["Reference"]}]});
    let parts = |algorithm: Value, staleness: u32| {
        let rollout = json!({"maxStaleness": staleness});
        json!({"algorithm": algorithm, "trainer": group, "rollout": rollout})
    };
    let ppo = parts(json!({"ppo": {"klCoefficient": 0.1}}), 0);
    let expected = [
        "6a infer reference (group frozen): batch -> referenceLogprobs",
        "7a infer policy (learners): batch policyWeights referenceLogprobs -> proximalLogprobs",
        "7a infer critic (learners): batch criticWeights referenceLogprobs -> values",
        "8a advantages (learners): batch referenceLogprobs proximalLogprobs values -> \
         advantages returns lossWeights",
    ];
    assert_eq!(lines(ppo.clone())[ROLLOUTS.len()..][..4], expected);
    let in_loss = json!({"grpo": {"klCoefficient": 0.1, "klTerm": "Loss"}});
    let one_update = json!({"algorithm": in_loss, "trainer": group, "training": {"steps": 9}});
    let advantages = "7a advantages (learners): batch referenceLogprobs -> advantages lossWeights";
    assert_eq!(lines(one_update)[ROLLOUTS.len()..][1], advantages);
    let call = |parts: Value| {
        let plan = plan(&spec(parts)).unwrap();
        plan.calls().find(|call| call.name == "infer reference").unwrap().clone()
    };
    assert_eq!((call(ppo.clone()).seconds, call(ppo).note), (Some("referenceSeconds"), None));
    let ahead = call(parts(json!({"ppo": {"klCoefficient": 0.1}}), 2)).note;
    assert_eq!(ahead.as_deref(), Some("runs for later steps while a step is trained"));
}

#[test]
fn rewards_on_different_workers_run_side_by_side() {
    let rewards = json!([
        {"name": "right", "math": {}}, {"name": "tests", "code": {"language": "Python"}},
        {"name": "judge", "model": {"url": "http://j", "text": "{{completion}}"}},
    ]);
    let lines = |verifiers: Value| {
        let mut parts = json!({"algorithm": {"grpo": {}}, "rewards": rewards});
        parts.as_object_mut().unwrap().extend(verifiers.as_object().cloned().unwrap());
        lines(parts)
    };
    let expected = |runner: &str| {
        [
            "3a reward right (coordinator): prompts completions -> rewards".to_owned(),
            format!("3b reward tests ({runner}): prompts completions -> rewards"),
            "3c reward judge (reward judge server): prompts completions -> rewards".to_owned(),
        ]
    };
    assert_eq!(lines(json!({}))[2..5], expected("reward runner"));
    let pods = json!({"verifiers": {"maxReplicas": 2}});
    assert_eq!(lines(pods)[2..5], expected("verifier pods"));
    let model = json!({"path": "/judge", "engines": {}, "text": "{{completion}}"});
    let served = json!({"rewards": [{"name": "judge", "model": model}]});
    let line = "3a reward judge (reward engines): prompts completions -> rewards";
    assert_eq!(lines(served)[2], line);
}

#[test]
fn a_workflow_answers_completions_before_the_next_turn() {
    let of = |workflow: Value, verifiers: Value| {
        let (grpo, rollout) = (json!({"grpo": {}}), json!({"workflow": workflow}));
        let all = lines(json!({"algorithm": grpo, "rollout": rollout, "verifiers": verifiers}));
        let start = all.iter().position(|line| line.contains(" pack ")).unwrap();
        all[..start].to_vec()
    };
    let environment = [
        "1a sync (learners): policyWeights -> engineWeights",
        "2a generate (engines): prompts engineWeights [turnMessages] -> completions \
         behaviorLogprobs",
        "3a reward right (coordinator): prompts completions -> rewards",
        "4a environment (environment server): completions rewards -> turnMessages \
         environmentRewards",
        "5a assemble (coordinator): completions turnMessages rewards environmentRewards \
         behaviorLogprobs -> samples",
    ];
    assert_eq!(of(json!({"environment": {"url": "http://e"}}), Value::Null), environment);
    let agent = [
        "1a sync (learners): policyWeights -> engineWeights",
        "2a agent (reward runner): prompts engineWeights [completions] -> agentRequests \
         turnMessages agentRewards",
        "3a generate (engines): agentRequests engineWeights -> completions behaviorLogprobs",
        "4a reward right (coordinator): prompts completions -> rewards",
        "5a assemble (coordinator): completions turnMessages rewards agentRewards \
         behaviorLogprobs -> samples",
    ];
    let workflow = json!({"agent": {"command": ["/agent"]}});
    assert_eq!(of(workflow.clone(), Value::Null), agent);
    let in_pods = agent.map(|line| line.replace("reward runner", "verifier pods"));
    assert_eq!(of(workflow, json!({"maxReplicas": 2})), in_pods);
    let tool =
        |name: &str, kind: &str, of: Value| json!({"name": name, "description": "text", kind: of});
    let tools = json!([
        tool("search", "http", json!({"url": "http://s"})),
        tool("run", "command", json!({"command": ["/run"]})),
    ]);
    let calls = of(json!({"tools": {"tools": tools}}), Value::Null);
    let expected = [
        "3b tool search (tool search server): completions -> turnMessages",
        "3c tool run (reward runner): completions -> turnMessages",
    ];
    assert_eq!(calls[3..5], expected);
}

#[test]
fn an_evaluation_ends_with_estimates() {
    let expected = [
        "1a sync (engines): policyWeights -> engineWeights",
        "2a generate (engines): prompts engineWeights -> completions behaviorLogprobs",
        "3a reward right (coordinator): prompts completions -> rewards",
        "4a estimate (coordinator): completions rewards -> estimates",
    ];
    assert_eq!(lines(json!({"algorithm": {"evaluation": {}}})), expected);
}

#[test]
fn rollouts_of_later_steps_are_beside_training() {
    let rollout = json!({"maxStaleness": 2});
    let plan = plan(&spec(json!({"algorithm": {"grpo": {}}, "rollout": rollout}))).unwrap();
    assert_eq!(plan.steps_ahead, 2);
    let beside = plan.stages_of(&[Phase::Rollouts]);
    assert_eq!((beside, plan.stages_of(&[Phase::Training])), (Some((2, 4)), Some((6, 8))));
}

fn call(name: &str, inputs: &[Data], outputs: &[Data]) -> Call {
    let call = Call::new(name, Kind::Transform, Workers::Learners, Phase::Training);
    call.with(inputs.iter().copied(), outputs.iter().copied())
}

#[test]
fn an_input_without_a_producer_is_an_error() {
    let train = call("train", &[Data::Batch, Data::Values], &[Data::NewPolicyWeights]);
    let error = stages(vec![train], &[Data::Batch]).unwrap_err();
    assert_eq!(error, PlanError::Missing { call: "train".to_owned(), data: Data::Values });
    let message = "call `train` needs values, which no call makes: declare a call with this output";
    assert_eq!(error.to_string(), message);
    let generate = call("generate", &[], &[Data::Completions]).later([Data::TurnMessages]);
    let error = stages(vec![generate], &[]).unwrap_err();
    let missing = PlanError::Missing { call: "generate".to_owned(), data: Data::TurnMessages };
    assert_eq!(error, missing, "of a later turn");
}

#[test]
fn calls_that_wait_for_each_other_are_an_error() {
    let calls = vec![
        call("pack", &[Data::Samples], &[Data::Batch]),
        call("train", &[Data::Values], &[Data::NewPolicyWeights]),
        call("values", &[Data::Batch, Data::Advantages], &[Data::Values]),
        call("advantages", &[Data::Values], &[Data::Advantages]),
    ];
    let error = stages(calls, &[Data::Samples]).unwrap_err();
    let message = "calls wait for each other: `values`, `advantages`; remove an input of one of \
                   them";
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_spec_without_an_algorithm_has_no_plan() {
    let error = plan(&spec(json!({"algorithm": {}}))).unwrap_err();
    assert_eq!(error, PlanError::NoAlgorithm);
}
