//! Episode: the turns of one sample, and the sample that they make. Pure.

use rljob_protocol::sglang::SamplingParams;
use serde_json::{Map, Value, json};

use super::agent::failure::AgentFailure;
use super::sampler::Sampled;
use super::score::Scored;
use crate::data::Prompt;
use crate::persistence::journal::{DETAILS, LIMIT, STOP, Sample, Segment};
use crate::reward::RewardError;
use crate::workflow::Workflow;

/// A completion with the tokens before it.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The prompt, or what follows the previous turn.
    pub given: Vec<i64>,
    /// `given` as text, without the chat template.
    pub given_text: String,
    pub sampled: Sampled,
    pub scored: Scored,
}

/// The turns of a sample.
#[derive(Debug)]
pub struct Episode {
    pub turns: Vec<Turn>,
    /// Whether `maxTurns` or `maxTokens` ended the sample.
    pub ended_by_limit: bool,
    /// Why the sample is dropped, if it is.
    pub rejected: Option<Rejected>,
}

/// Why a sample is dropped.
#[derive(Debug)]
pub enum Rejected {
    /// The verifier failed for a further completion.
    Verifier(Box<Sampled>, RewardError),
    /// The program of the agent failed.
    Agent(AgentFailure),
}

impl Rejected {
    /// Value of the label `cause` of the metric of rejected samples.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Verifier(_, error) => error.kind(),
            Self::Agent(failure) => failure.kind(),
        }
    }

    /// The error in one line.
    pub fn line(&self) -> String {
        match self {
            Self::Verifier(_, error) => crate::error_line(error),
            Self::Agent(failure) => crate::error_line(failure),
        }
    }
}

impl Episode {
    /// The episode of a program that failed.
    pub fn rejected(failure: AgentFailure) -> Self {
        let rejected = Some(Rejected::Agent(failure));
        Self { turns: Vec::new(), ended_by_limit: false, rejected }
    }

    /// All completions.
    pub fn completions(&self) -> impl Iterator<Item = &Sampled> {
        let rejected = self.rejected.iter().filter_map(|rejected| match rejected {
            Rejected::Verifier(sampled, _) => Some(sampled.as_ref()),
            Rejected::Agent(_) => None,
        });
        self.turns.iter().map(|turn| &turn.sampled).chain(rejected)
    }

    /// The reward without discount.
    pub fn undiscounted(&self, workflow: &Workflow) -> f64 {
        let rewards: Vec<f64> = self.turns.iter().map(|turn| turn.scored.reward.value).collect();
        workflow.undiscounted(&rewards)
    }

    /// The completions as text, with what was given between them.
    pub fn text(&self) -> String {
        let texts = self.turns.iter().flat_map(|turn| [&turn.given_text, &turn.scored.text]);
        texts.skip(1).map(String::as_str).collect()
    }

    /// The sample of an episode with at least one turn.
    ///
    /// # Errors
    /// The sampling parameters are not JSON.
    pub fn into_sample(
        self,
        prompt: &Prompt,
        index: u32,
        workflow: &Workflow,
    ) -> serde_json::Result<Option<Sample>> {
        let rewards: Vec<f64> = self.turns.iter().map(|turn| turn.scored.reward.value).collect();
        let turn_rewards = workflow.turn_rewards(&rewards);
        let parameters: Vec<&SamplingParams> =
            self.turns.iter().map(|turn| &turn.sampled.parameters).collect();
        let sampling = match parameters.as_slice() {
            [only] => serde_json::to_value(only),
            several => serde_json::to_value(several),
        }?;
        let mut metadata = Map::new();
        if self.turns.len() > 1 {
            metadata.insert("turns".to_owned(), self.turns.iter().map(facts).collect());
        }
        let Some(last) = self.turns.last() else { return Ok(None) };
        let reward = last.scored.reward.clone();
        if let Some(answer) = reward.answer {
            metadata.insert("answer".to_owned(), answer.into());
        }
        if !reward.details.is_empty() {
            metadata.insert(DETAILS.to_owned(), reward.details.into_iter().collect());
        }
        Ok(Some(Sample {
            position: prompt.position,
            index,
            row: prompt.row,
            finish_reason: match finish_reason(&last.sampled) {
                STOP if self.ended_by_limit => LIMIT.to_owned(),
                reason => reason.to_owned(),
            },
            segments: (0..).zip(self.turns).flat_map(|(turn, of)| segments(turn, of)).collect(),
            sampling,
            reward: turn_rewards.iter().sum(),
            reward_components: reward.components,
            turn_rewards,
            metadata,
        }))
    }
}

/// What the verifiers say about a turn, before the discount.
fn facts(turn: &Turn) -> Value {
    let reward = &turn.scored.reward;
    json!({
        "reward": reward.value,
        "components": reward.components,
        "answer": reward.answer,
        "finishReason": finish_reason(&turn.sampled),
    })
}

fn finish_reason(sampled: &Sampled) -> &'static str {
    sampled.completion.finish_reason.unwrap_or_default()
}

fn segments(index: u32, turn: Turn) -> [Segment; 2] {
    let completion = turn.sampled.completion;
    [
        Segment::given(index, turn.given, turn.given_text),
        Segment {
            turn: index,
            tokens: completion.tokens,
            trained: true,
            sampler_logprobs: completion.logprobs,
            teacher_logprobs: Vec::new(),
            versions: completion.versions,
            text: turn.scored.text,
        },
    ]
}

#[cfg(test)]
mod tests {
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
            run_seed: 1,
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
        Prompt {
            position: 4,
            row: 9,
            text: "1+1=".to_owned(),
            tokens: vec![5, 6],
            answer: None,
            rewards: std::sync::Arc::default(),
            category: None,
            completion_tokens: None,
            later_turns: Vec::new(),
            pair_tokens: None,
            tools: None,
            fields: None,
        }
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
}
