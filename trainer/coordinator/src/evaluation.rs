//! Evaluation: accuracy on held-out prompts, with one greedy completion and several sampled ones
//! per prompt.
//!
//! ```text
//!  prompt ─▶ samples 0 … n − 1, greedy ─▶ rewards ─┬─ means, standard errors        summary
//!                                                  └─ pass@k, maj@k for k = 1, 2, … n   estimate
//! ```
//!
//! Between steps, all completions come from the evaluated weights. Beside training (`maxStaleness`
//! above 0), no publication of weights waits: completions that one interrupts keep their tokens and
//! continue with the newer weights, as rollouts do, and the result says for how many tokens
//! (docs/decisions/0014).
//!
//! Completions have the turns of `rollout.workflow`; the reward is that of the last turn, without
//! discount, so that accuracy is the share of prompts that are solved within the turns.

pub mod estimate;
mod judged;
mod summary;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use futures::StreamExt;
use rljob_crds::RunConfig;
use rljob_crds::algorithm::Algorithm;
use rljob_crds::data::EvaluationDataset;
use rljob_protocol::metrics::EvaluationMetrics;
use rljob_protocol::version::Version;

use crate::clock::Clock;
use crate::data::Dataset;
use crate::engines::{Fleet, Weights};
use crate::input::{Input, InputError};
use crate::recorder::Recorder;
use crate::rollout::agent::Agents;
use crate::rollout::episodes::Episodes;
use crate::rollout::play::play;
use crate::rollout::request::{Key, Purpose};
use crate::rollout::sampler::{SampleRequest, Sampler};
use crate::run_handle::RunHandle;
use crate::work_error::WorkError;
use judged::{Judged, Judgement};
use summary::{first_turns, summary};

/// Most prompts in progress.
const PROMPTS: usize = 1024;
/// Share of the completions of a step that an evaluation beside training may have in progress, as
/// its inverse.
const BESIDE: u64 = 4;

/// Handles that evaluations use.
pub struct Evaluator {
    pub config: Arc<RunConfig>,
    pub input: Arc<Input>,
    pub run: RunHandle,
    pub fleet: Arc<Fleet>,
    pub recorder: Recorder,
    /// Programs of agents, if the workflow has them.
    pub agents: Option<Arc<Agents>>,
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
    agents: Option<&'a Agents>,
    spec: &'a EvaluationDataset,
    version: Version,
    /// Weights that may sample the completions.
    weights: Weights,
}

impl Evaluator {
    /// Evaluates `version` and records the result in the journal and the JSONL files. With
    /// `beside`, newer weights may sample a part, and at most a quarter of a step's completions are
    /// in progress, so that rollouts keep most of the engines.
    pub async fn run(
        &self,
        version: Version,
        beside: bool,
    ) -> Result<EvaluationMetrics, WorkError> {
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
        let weights = if beside { Weights::Since(version.step) } else { Weights::Exactly(version) };
        let agents = self.agents.as_deref();
        let evaluation =
            Evaluation { config, input, sampler, data, agents, spec, version, weights };
        let prompts = if beside { self.prompts_beside(spec.samples) } else { PROMPTS };
        let mut prompts = futures::stream::iter(0..data.len())
            .map(|row| evaluation.prompt(row))
            .buffer_unordered(prompts);
        let mut judged = BTreeMap::new();
        while let Some(result) = prompts.next().await {
            let (row, prompt) = result?;
            judged.insert(row, prompt);
        }
        let seconds = self.clock.now().saturating_sub(started).as_secs_f64();
        let shown: Vec<_> =
            judged.values_mut().flat_map(|judged| std::mem::take(&mut judged.shown)).collect();
        let judged = judged.into_values().collect::<Vec<_>>();
        let results = judged.iter().map(|judged| judged.result(version.step)).collect();
        let mut metrics =
            summary(version.step, spec.samples, &judged, seconds).ok_or_else(|| {
                let cause = judged.iter().find_map(|judged| judged.cause.clone());
                WorkError::AllRejected { step: version.step, cause: cause.unwrap_or_default() }
            })?;
        if !beside {
            metrics.newer_tokens = None;
        }
        if self.input.workflow.has_first_turn_reward() {
            first_turns(&judged).for_each(|(name, mean)| metrics.scalars.set(name, mean));
        }
        let validation = self.run.read(|run| run.validation(version.step).cloned()).await;
        let metrics = match &validation {
            Some(report) => report.added_to(metrics),
            None => metrics,
        };
        self.recorder.record_evaluation(metrics.clone(), shown, results).await?;
        Ok(metrics)
    }

    /// Prompts in progress beside training, with `samples` sampled completions and a greedy one.
    fn prompts_beside(&self, samples: u32) -> usize {
        let spec = &self.config.spec;
        let group = spec.algorithm.resolve().map_or(1, Algorithm::group_size);
        let step = u64::from(spec.rollout.batch_size).saturating_mul(u64::from(group));
        let completions = NonZeroU64::MIN.saturating_add(u64::from(samples));
        let prompts = step / BESIDE / completions;
        usize::try_from(prompts).unwrap_or(PROMPTS).clamp(1, PROMPTS)
    }
}

impl Evaluation<'_> {
    async fn prompt(&self, row: u64) -> Result<(u64, Judged), WorkError> {
        let rollout = &self.config.spec.rollout;
        let prompt = self.data.prompt(row).map_err(InputError::from)?;
        let max_new_tokens = self.spec.max_new_tokens.unwrap_or(rollout.max_new_tokens);
        let lengths = self.input.lengths(&self.config.spec, max_new_tokens);
        let max_new_tokens =
            self.input.room("evaluation", prompt.row, prompt.tokens.len(), lengths)?;
        let temperature = self.spec.temperature.unwrap_or(rollout.temperature);
        let samples = self.spec.samples;
        let wanted = |index| SampleRequest {
            key: Key {
                purpose: Purpose::Evaluation,
                step: self.version.step,
                position: row,
                index,
                turn: 0,
            },
            temperature: if index < samples { temperature } else { 0.0 },
            top_p: if index < samples { self.spec.top_p.unwrap_or(1.0) } else { 1.0 },
            max_new_tokens,
            stop: Vec::new(),
        };
        let wanted: Vec<_> = (0..=samples).map(wanted).collect();
        let (input, sampler, weights) = (self.input, &self.sampler, self.weights);
        let episodes = Episodes { input, data: self.data, sampler, weights, lengths };
        let (mut played, _) = play(&episodes, self.agents, &prompt, &wanted).await;
        let mut judgement = Judgement::default();
        while let Some((index, episode)) = played.next().await {
            let episode = episode?;
            if let Some(rejected) = &episode.rejected {
                let error = rejected.line();
                tracing::warn!(row, %error, "a completion is left out of the evaluation");
            }
            judgement.add(index, episode, &self.input.workflow, self.version);
        }
        let rewards = self.input.rewards.as_ref();
        Ok((row, judgement.judge(self.spec, rewards, self.version.step, &prompt)))
    }
}
