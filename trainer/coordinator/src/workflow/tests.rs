//! Tests of turns, their rewards and their lengths.

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::workflow::WorkflowSpec;
use serde_json::json;

use super::{Lengths, Message, Next, Prompt, Reward, Runner, Workflow};

fn spec() -> WorkflowSpec {
    serde_json::from_value(json!({"multiTurn": {
        "maxTurns": 3, "feedback": "No: {{turn.completion}}", "discount": 0.5,
        "correctReward": 0.9, "maxTokens": 20,
    }}))
    .unwrap()
}

fn of(spec: WorkflowSpec) -> Workflow {
    let rollout = RolloutSpec { workflow: Some(spec), ..RolloutSpec::default() };
    Workflow::new(&rollout, "", &Runner::Program("runner".into())).unwrap()
}

fn workflow() -> Workflow {
    of(spec())
}

fn prompt() -> Prompt {
    Prompt {
        text: "1+1".to_owned(),
        tokens: vec![5, 6],
        answer: Some("2".to_owned()),
        ..Prompt::default()
    }
}

#[test]
fn feedback_follows_wrong_turns_up_to_the_last() {
    let after = |number, value| {
        let reward = Reward { value, ..Reward::default() };
        workflow().messages(&prompt(), number, "3", &reward).unwrap()
    };
    let feedback = Next::Turn(vec![Message::user("No: 3")]);
    assert_eq!((after(1, 0.0), after(2, 0.89)), (feedback.clone(), feedback));
    assert_eq!([after(1, 0.9), after(3, 0.9), after(3, 0.0)], [Next::End, Next::End, Next::Limit]);
    let reward = Reward::default();
    assert_eq!(Workflow::SingleTurn.messages(&prompt(), 1, "3", &reward).unwrap(), Next::End);
}

/// AReaL's `multi_turn.py`: the reward of the last turn, times the discount for each turn
/// before it.
#[test]
fn the_reward_is_that_of_the_last_turn_discounted_by_the_turns_before() {
    let credited = |rewards: &[f64]| workflow().turn_rewards(rewards);
    assert_eq!(credited(&[1.0]), [1.0]);
    assert_eq!(credited(&[0.1, 1.0]), [0.0, 0.5]);
    assert_eq!(credited(&[0.1, 0.1, 1.0]), [0.0, 0.0, 0.25]);
    assert_eq!(credited(&[0.1, 0.1, 0.2]), [0.0, 0.0, 0.05]);
    assert_eq!(Workflow::SingleTurn.turn_rewards(&[0.7]), [0.7]);
}

#[test]
fn the_reward_with_tools_is_that_of_the_last_completion() {
    let spec = json!({"tools": {"tools": [
        {"name": "add", "description": "Adds.", "http": {"url": "http://tools.lab"}},
    ]}});
    let workflow = of(serde_json::from_value(spec).unwrap());
    assert_eq!(workflow.turn_rewards(&[0.0, 0.0, 0.7]), [0.0, 0.0, 0.7]);
    assert!((workflow.undiscounted(&[0.0, 0.7]) - 0.7).abs() < f64::EPSILON);
}

#[test]
fn a_completion_has_the_room_that_turn_sample_and_context_leave() {
    let lengths = Lengths::new(Some(&spec()), 100, 8);
    assert_eq!(lengths.room(10, 0), 8);
    assert_eq!((lengths.room(10, 14), lengths.room(10, 20)), (6, 0));
    assert_eq!((lengths.room(85, 12), lengths.room(90, 12)), (3, 0));
    assert_eq!(Lengths::new(None, 100, 8).room(10, 80), 8);
}
