//! Tests of episodes.

use std::collections::BTreeMap;

use rljob_crds::algorithm::RolloutSpec;
use rljob_protocol::version::Version;

use super::*;
use crate::persistence::journal::VersionRun;
use crate::reward::{Reward, Runner};
use crate::rollout::completion::Completion;
use crate::rollout::request::{Key, Purpose, Sampling, parameters};

fn sampled(turn: u32, tokens: &[i64]) -> Sampled {
    let sampling = Sampling {
        run_seed: Some(1),
        stop_token_ids: &[2],
        stop: &[],
        min_new_tokens: 0,
        temperature: 1.0,
        top_p: 1.0,
    };
    let key = Key { purpose: Purpose::Rollout, step: 1, position: 4, index: 3, turn };
    let version = Version { step: turn, attempt: 0 };
    Sampled {
        parameters: parameters(key, &sampling, 0, 6),
        completion: Completion {
            tokens: tokens.to_vec(),
            logprobs: tokens.iter().map(|&token| -(token as f32)).collect(),
            versions: vec![VersionRun { version, tokens: tokens.len() as u32 }],
            finish_reason: Some(if turn == 0 { "length" } else { "stop" }),
        },
        engine: "engine-0".to_owned(),
    }
}

fn turn(index: u32, given: (&[i64], &str), tokens: &[i64], text: &str, value: f64) -> Turn {
    let components = BTreeMap::from([("right".to_owned(), value)]);
    Turn {
        given: given.0.to_vec(),
        given_text: given.1.to_owned(),
        sampled: sampled(index, tokens),
        scored: Scored {
            text: text.to_owned(),
            reward: Reward {
                value,
                components,
                answer: Some(text.to_owned()),
                ..Reward::default()
            },
        },
    }
}

fn prompt() -> Prompt {
    Prompt { position: 4, row: 9, text: "1+1=".to_owned(), tokens: vec![5, 6], ..Prompt::default() }
}

fn workflow() -> Workflow {
    let workflow = json!({"multiTurn": {"feedback": "No", "discount": 0.5}});
    let workflow = serde_json::from_value(workflow).unwrap();
    let rollout = RolloutSpec { workflow: Some(workflow), ..RolloutSpec::default() };
    Workflow::new(&rollout, "", &Runner::Program("runner".into())).unwrap()
}

#[test]
fn a_sample_has_the_segments_rewards_and_seeds_of_its_turns() {
    let turns = vec![
        turn(0, (&[5, 6], "1+1="), &[7, 8], "3", 0.0),
        turn(1, (&[9], "No"), &[7, 2], "2", 1.0),
    ];
    let episode = Episode { turns, ended_by_limit: false, rejected: None };
    assert_eq!(episode.text(), "3No2");
    let sample = episode.into_sample(&prompt(), 3, &workflow()).unwrap().unwrap();
    let segments: Vec<_> = sample
        .segments
        .iter()
        .map(|of| (of.turn, of.tokens.as_slice(), of.trained, of.text.as_str()))
        .collect();
    let expected: [(u32, &[i64], bool, &str); 4] = [
        (0, &[5, 6], false, "1+1="),
        (0, &[7, 8], true, "3"),
        (1, &[9], false, "No"),
        (1, &[7, 2], true, "2"),
    ];
    assert_eq!(segments, expected);
    assert_eq!((sample.reward, sample.turn_rewards.as_slice()), (0.5, &[0.0, 0.5][..]));
    assert_eq!((sample.finish_reason.as_str(), sample.oldest()), ("stop", Some(0)));
    assert_eq!(sample.segments[3].sampler_logprobs, [-7.0, -2.0]);
    let seeds = [0, 1].map(|turn| sample.sampling[turn]["sampling_seed"].clone());
    assert_ne!(seeds[0], seeds[1]);
    let facts = |reward: f64, answer: &str, finish: &str| {
        json!({
            "reward": reward, "components": {"right": reward}, "answer": answer,
            "finishReason": finish,
        })
    };
    let expected = json!({
        "answer": "2", "turns": [facts(0.0, "3", "length"), facts(1.0, "2", "stop")],
    });
    assert_eq!(Value::Object(sample.metadata), expected);
}

#[test]
fn the_finish_reason_is_that_of_the_last_completion_or_the_limit_of_the_workflow() {
    // The completion of turn 0 has the maximum length, that of turn 1 stopped.
    let reasons = [(0, false), (0, true), (1, false), (1, true)].map(|(index, limited)| {
        let turns = vec![turn(index, (&[5], "1"), &[7, 2], "2", 1.0)];
        let episode = Episode { turns, ended_by_limit: limited, rejected: None };
        let sample = episode.into_sample(&prompt(), 3, &Workflow::SingleTurn).unwrap();
        sample.unwrap().finish_reason
    });
    assert_eq!(reasons, ["length", "length", "stop", "limit"]);
}

#[test]
fn a_sample_of_one_turn_has_its_reward_and_one_set_of_sampling_parameters() {
    let turns = vec![turn(0, (&[5, 6], "1+1="), &[7, 2], "2", 1.0)];
    let episode = Episode { turns, ended_by_limit: false, rejected: None };
    let sample = episode.into_sample(&prompt(), 3, &Workflow::SingleTurn).unwrap().unwrap();
    assert_eq!((sample.reward, sample.segments.len()), (1.0, 2));
    assert!(sample.sampling["sampling_seed"].is_u64(), "{}", sample.sampling);
    assert_eq!(Value::Object(sample.metadata), json!({"answer": "2"}));
}
