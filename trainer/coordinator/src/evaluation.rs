//! Evaluation: accuracy on held-out prompts, with one greedy completion and several sampled ones
//! per prompt, all from the same weights.
//!
//! ```text
//!  prompt ─▶ samples 0 … n − 1, greedy ─▶ rewards ─┬─ means
//!                                                  └─ estimate: pass@k, maj@k for k = 1, 2, 4, … n
//! ```

pub mod estimate;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use rljob_crds::RunConfig;
use rljob_crds::data::EvaluationDataset;
use rljob_protocol::metrics::{EvaluationMetrics, Scalars};
use rljob_protocol::version::Version;
use serde::Serialize;

use crate::clock::Clock;
use crate::data::{Dataset, Prompt};
use crate::engines::{Fleet, Weights};
use crate::input::{Input, InputError};
use crate::recorder::Recorder;
use crate::rollout::request::{Key, Purpose};
use crate::rollout::sampler::{RefusedEverywhere, SampleRequest, Sampled, Sampler};
use crate::rollout::score::{Scored, Verdict, score};
use crate::run_handle::RunHandle;
use crate::work_error::WorkError;
use estimate::{majority_at, pass_at, sizes};

/// Most prompts in progress.
const PROMPTS: usize = 1024;
/// Number of prompts whose completions are stored for reading.
const SHOWN: u64 = 16;

/// A completion to read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    step: u32,
    row: u64,
    index: u32,
    greedy: bool,
    prompt: String,
    answer: Option<String>,
    completion: String,
    reward: f64,
    tokens: usize,
}

/// Results of one prompt.
#[derive(Debug, Default)]
struct Judged {
    /// Rewards of the samples, in order of index.
    sampled: Vec<f64>,
    greedy: Option<f64>,
    /// By k.
    pass_at: BTreeMap<u32, f64>,
    majority_at: BTreeMap<u32, bool>,
    shown: Vec<Shown>,
}

/// Handles that evaluations use.
pub struct Evaluator {
    pub config: Arc<RunConfig>,
    pub input: Arc<Input>,
    pub run: RunHandle,
    pub fleet: Arc<Fleet>,
    pub recorder: Recorder,
    pub clock: Clock,
    /// Random number of this process; part of request ids.
    pub incarnation: u64,
}

/// An evaluation of one version.
struct Evaluation<'a> {
    config: &'a RunConfig,
    input: &'a Arc<Input>,
    sampler: Sampler<'a>,
    data: &'a Dataset,
    spec: &'a EvaluationDataset,
    version: Version,
}

impl Evaluator {
    /// Evaluates `version` and records the result in the journal and the JSONL files.
    pub async fn run(&self, version: Version) -> Result<EvaluationMetrics, WorkError> {
        let spec = self.config.spec.dataset.evaluation.as_ref();
        let (Some(data), Some(spec)) = (&self.input.evaluation, spec) else {
            return Err(WorkError::NoEvaluationData);
        };
        let started = self.clock.now();
        let sampler = Sampler::new(
            &self.config,
            &self.input,
            &self.fleet,
            self.clock,
            self.incarnation,
            self.recorder.metrics.interrupted.clone(),
        );
        let (config, input) = (&self.config, &self.input);
        let evaluation = Evaluation { config, input, sampler, data, spec, version };
        let mut prompts = futures::stream::iter(0..data.len())
            .map(|row| evaluation.prompt(row))
            .buffer_unordered(PROMPTS);
        let mut judged = BTreeMap::new();
        while let Some(result) = prompts.next().await {
            let (row, prompt) = result?;
            judged.insert(row, prompt);
        }
        let seconds = self.clock.now().saturating_sub(started).as_secs_f64();
        let shown: Vec<_> =
            judged.values_mut().flat_map(|judged| std::mem::take(&mut judged.shown)).collect();
        let judged = judged.into_values().collect::<Vec<_>>();
        let metrics = summary(version.step, spec.samples, &judged, seconds)
            .ok_or(WorkError::AllRejected { step: version.step })?;
        let validation = self.run.read(|run| run.validation(version.step).cloned()).await;
        let metrics = match &validation {
            Some(report) => metrics.with_loss(report.loss, report.tokens, report.seconds),
            None => metrics,
        };
        self.recorder.record_evaluation(metrics.clone(), shown).await?;
        Ok(metrics)
    }
}

impl Evaluation<'_> {
    async fn prompt(&self, row: u64) -> Result<(u64, Judged), WorkError> {
        let rollout = &self.config.spec.rollout;
        let prompt = self.data.prompt(row).map_err(InputError::from)?;
        let max_new_tokens = self.input.room(
            "evaluation",
            prompt.row,
            prompt.tokens.len(),
            rollout.max_new_tokens,
        )?;
        let temperature = self.spec.temperature.unwrap_or(rollout.temperature);
        let samples = self.spec.samples;
        let wanted = |index| SampleRequest {
            key: Key {
                purpose: Purpose::Evaluation,
                step: self.version.step,
                position: row,
                index,
            },
            temperature: if index < samples { temperature } else { 0.0 },
            max_new_tokens,
        };
        let wanted: Vec<_> = (0..=samples).map(wanted).collect();
        let weights = Weights::Exactly(self.version);
        let lease = self.sampler.lease(weights, &prompt.tokens, &wanted).await;
        // A slow verifier does not delay the other completions.
        let scored = self
            .sampler
            .group(lease, weights, &prompt.tokens, &wanted)
            .map(|(at, result)| self.scored(&prompt, at, result))
            .buffer_unordered(wanted.len());
        let mut scored = std::pin::pin!(scored);
        let mut completions = BTreeMap::new();
        while let Some(result) = scored.next().await {
            let (at, tokens, verdict) = result?;
            match verdict {
                Verdict::Scored(scored) => drop(completions.insert(at as u32, (scored, tokens))),
                Verdict::Rejected(error) => {
                    tracing::warn!(row, error = %crate::error_line(&error), "a completion is \
                        left out of the evaluation");
                }
            }
        }
        Ok((row, self.judge(row, &prompt, completions)))
    }

    /// Index, number of tokens and verdict of a completion.
    async fn scored(
        &self,
        prompt: &Prompt,
        at: usize,
        result: Result<Sampled, RefusedEverywhere>,
    ) -> Result<(usize, usize, Verdict), WorkError> {
        let (_, completion) = result.map_err(|refused| InputError::PromptRejected {
            row: prompt.row,
            message: refused.0,
        })?;
        let tokens = completion.tokens.len();
        Ok((at, tokens, score(self.input, prompt, completion.tokens).await?))
    }

    /// `completions`: text with reward, and number of tokens, by index; the greedy one is last.
    fn judge(
        &self,
        row: u64,
        prompt: &Prompt,
        completions: BTreeMap<u32, (Scored, usize)>,
    ) -> Judged {
        let samples = self.spec.samples;
        let sampled: Vec<f64> =
            completions.range(..samples).map(|(_, (scored, _))| scored.reward.value).collect();
        let correct: Vec<bool> =
            sampled.iter().map(|reward| *reward >= self.spec.correct_reward).collect();
        let texts: Vec<&str> =
            completions.range(..samples).map(|(_, (scored, _))| scored.text.as_str()).collect();
        let reported: Vec<Option<&str>> = completions
            .range(..samples)
            .map(|(_, (scored, _))| scored.reward.answer.as_deref())
            .collect();
        let rewards = self.input.rewards.as_ref();
        let answers = rewards.and_then(|rewards| rewards.answer_classes(&texts, &reported));
        let votes = |answers: Vec<Option<usize>>| {
            answers
                .into_iter()
                .zip(&correct)
                .map(|(answer, &correct)| estimate::Scored { correct, answer })
                .collect()
        };
        let votes: Vec<estimate::Scored> = answers.map(votes).unwrap_or_default();
        let right = correct.iter().filter(|correct| **correct).count() as u32;
        let by_size = || sizes(samples).into_iter();
        let pass =
            by_size().filter_map(|k| Some((k, pass_at(sampled.len() as u32, right, k)?))).collect();
        let majority = by_size().filter_map(|k| Some((k, majority_at(&votes, k)?))).collect();
        let greedy = completions.get(&samples).map(|(scored, _)| scored.reward.value);
        let show = |(index, (scored, tokens)): (u32, (Scored, usize))| Shown {
            step: self.version.step,
            row,
            index,
            greedy: index == samples,
            prompt: prompt.text.clone(),
            answer: prompt.answer.clone(),
            completion: scored.text,
            reward: scored.reward.value,
            tokens,
        };
        let shown =
            if row < SHOWN { completions.into_iter().map(show).collect() } else { Vec::new() };
        Judged { sampled, greedy, pass_at: pass, majority_at: majority, shown }
    }
}

/// Means over prompts in the data's order, so that the same rewards give the same bits. None if
/// nothing was scored.
fn summary(step: u32, samples: u32, judged: &[Judged], seconds: f64) -> Option<EvaluationMetrics> {
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let by_size = |value: &dyn Fn(&Judged, u32) -> Option<f64>| {
        let at =
            |k| Some((k, mean(judged.iter().filter_map(|judged| value(judged, k)).collect())?));
        sizes(samples).into_iter().filter_map(at).collect::<BTreeMap<u32, f64>>()
    };
    Some(EvaluationMetrics {
        step,
        prompts: judged.len() as u32,
        samples,
        sampled: Some(mean(judged.iter().flat_map(|judged| judged.sampled.clone()).collect())?),
        greedy: Some(mean(judged.iter().filter_map(|judged| judged.greedy).collect())?),
        pass_at: by_size(&|judged, k| judged.pass_at.get(&k).copied()),
        majority_at: by_size(&|judged, k| {
            judged.majority_at.get(&k).map(|right| f64::from(u8::from(*right)))
        }),
        loss: None,
        loss_tokens: None,
        seconds,
        scalars: Scalars::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rljob_protocol::metrics::{EvaluationMetrics, Scalars};

    use super::{Judged, summary};

    #[test]
    fn the_summary_is_the_mean_over_prompts() {
        let judged = |sampled: &[f64], greedy, pass: f64, majority| Judged {
            sampled: sampled.to_vec(),
            greedy,
            pass_at: BTreeMap::from([(1, pass), (2, 1.0)]),
            majority_at: BTreeMap::from([(1, majority)]),
            shown: Vec::new(),
        };
        let prompts =
            [judged(&[1.0, 0.0], Some(1.0), 0.5, true), judged(&[1.0, 1.0], None, 1.0, false)];
        let expected = EvaluationMetrics {
            step: 3,
            prompts: 2,
            samples: 2,
            sampled: Some(0.75),
            greedy: Some(1.0),
            pass_at: BTreeMap::from([(1, 0.75), (2, 1.0)]),
            majority_at: BTreeMap::from([(1, 0.5)]),
            loss: None,
            loss_tokens: None,
            seconds: 1.5,
            scalars: Scalars::default(),
        };
        assert_eq!(summary(3, 2, &prompts, 1.5), Some(expected));
        assert_eq!(summary(3, 2, &[Judged::default()], 1.5), None);
    }
}
