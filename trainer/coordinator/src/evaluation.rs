//! Evaluation: accuracy on held-out prompts, with one greedy completion and several sampled ones
//! per prompt.
//!
//! ```text
//!  prompt ─▶ samples 0 … n − 1, greedy ─▶ rewards ─┬─ means, standard errors        summary
//!                                                  └─ pass@k, maj@k for k = 1, 2, … n   estimate
//! ```
//!
//! Prompts of all suites that are due are in progress together, in the order of the suites.
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
use rljob_crds::algorithm::Capabilities;
use rljob_protocol::metrics::EvaluationMetrics;
use rljob_protocol::version::Version;

use crate::clock::Clock;
use crate::engines::{Fleet, Weights};
use crate::input::{Input, InputError, SuiteData};
use crate::recorder::Recorder;
use crate::rollout::agent::Agents;
use crate::rollout::episodes::Episodes;
use crate::rollout::play::play;
use crate::rollout::request::{Key, Purpose};
use crate::rollout::sampler::{SampleRequest, Sampler};
use crate::run_handle::RunHandle;
use crate::telemetry::ToolCalls;
use crate::timeline::COORDINATOR;
use crate::work_error::WorkError;
use judged::{Judged, Judgement};
use summary::{combined, first_turns, summary};

/// Most prompts in progress.
const PROMPTS: usize = 1024;
/// Bit of a prompt's position above which its suite is numbered, so that requests and seeds of
/// suites differ.
const SUITE_BIT: u32 = 40;
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
    agents: Option<&'a Agents>,
    version: Version,
    /// Weights that may sample the completions.
    weights: Weights,
    tool_calls: &'a ToolCalls,
}

/// Judged prompts of a suite.
struct Progress<'a> {
    own: &'a SuiteData,
    judged: BTreeMap<u64, Judged>,
    /// Seconds until the last prompt was judged.
    seconds: f64,
}

impl Evaluator {
    /// Evaluates `version` on the suites with these indices and records the result in the journal
    /// and the JSONL files. With `beside`, newer weights may sample a part, and at most a quarter
    /// of a step's completions are in progress, so that rollouts keep most of the engines.
    pub async fn run(
        &self,
        version: Version,
        beside: bool,
        suites: &[usize],
    ) -> Result<EvaluationMetrics, WorkError> {
        let began = self.clock.now();
        let judged = self.judge(version, beside, suites).await?;
        let (mut shown, mut results, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for progress in judged {
            let Progress { own, judged, seconds } = progress;
            let (name, samples) = (own.suite.name.as_deref(), own.suite.data.samples);
            let mut judged: Vec<Judged> = judged.into_values().collect();
            shown.extend(judged.iter_mut().flat_map(|judged| std::mem::take(&mut judged.shown)));
            results.extend(judged.iter().map(|judged| judged.result(version.step, name)));
            let mut metrics =
                summary(version.step, samples, &judged, seconds).ok_or_else(|| {
                    let cause = judged.iter().find_map(|judged| judged.cause.clone());
                    WorkError::AllRejected { step: version.step, cause: cause.unwrap_or_default() }
                })?;
            if !beside {
                metrics.newer_tokens = None;
            }
            if self.input.workflow.has_first_turn_reward() {
                first_turns(&judged).for_each(|(name, mean)| metrics.scalars.set(name, mean));
            }
            found.push((name, metrics));
        }
        let metrics = combined(version.step, found).ok_or(WorkError::NoEvaluationData)?;
        let validation = self.run.read(|run| run.validation(version.step).cloned()).await;
        let metrics = match &validation {
            Some(report) => report.added_to(metrics),
            None => metrics,
        };
        self.recorder.record_evaluation(metrics.clone(), shown, results).await?;
        let (name, now) = (format!("evaluation of step {}", version.step), self.clock.now());
        self.recorder.timeline.add(COORDINATOR, name, (began, now));
        Ok(metrics)
    }

    /// Samples and scores the completions of the suites.
    async fn judge(
        &self,
        version: Version,
        beside: bool,
        suites: &[usize],
    ) -> Result<Vec<Progress<'_>>, WorkError> {
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
        let tool_calls = &self.recorder.metrics.tool_calls;
        let evaluation =
            Evaluation { config, input, sampler, agents, version, weights, tool_calls };
        let due: Vec<(usize, &SuiteData)> = suites
            .iter()
            .filter_map(|&suite| Some((suite, self.input.evaluation.get(suite)?)))
            .collect();
        let samples = due.iter().map(|(_, own)| own.suite.data.samples).max().unwrap_or_default();
        let in_progress = if beside { self.prompts_beside(samples) } else { PROMPTS };
        let of_suite = |(at, &(suite, own)): (usize, &(usize, &'_ SuiteData))| {
            (0..own.data.len()).map(move |row| (at, suite, row))
        };
        let prompts: Vec<_> = due.iter().enumerate().flat_map(of_suite).collect();
        let judge = |(at, suite, row)| {
            let (evaluation, own) = (&evaluation, due.get(at).map(|(_, own)| *own));
            async move {
                let own = own.ok_or(WorkError::NoEvaluationData)?;
                Ok::<_, WorkError>((at, evaluation.prompt(suite, own, row).await?))
            }
        };
        let mut prompts = futures::stream::iter(prompts).map(judge).buffer_unordered(in_progress);
        let progress = |own| Progress { own, judged: BTreeMap::new(), seconds: 0.0 };
        let mut found: Vec<Progress<'_>> = due.iter().map(|(_, own)| progress(*own)).collect();
        while let Some(result) = prompts.next().await {
            let (at, (row, judged)) = result?;
            if let Some(progress) = found.get_mut(at) {
                progress.judged.insert(row, judged);
                progress.seconds = self.clock.now().saturating_sub(started).as_secs_f64();
            }
        }
        Ok(found)
    }

    /// Prompts in progress beside training, with `samples` sampled completions and a greedy one.
    fn prompts_beside(&self, samples: u32) -> usize {
        let spec = &self.config.spec;
        let group = spec.algorithm.capabilities().map_or(1, Capabilities::group_size);
        let step = u64::from(spec.rollout.batch_size).saturating_mul(u64::from(group));
        let completions = NonZeroU64::MIN.saturating_add(u64::from(samples));
        let prompts = step / BESIDE / completions;
        usize::try_from(prompts).unwrap_or(PROMPTS).clamp(1, PROMPTS)
    }
}

impl Evaluation<'_> {
    /// Judges the prompt of a row of suite number `suite`.
    async fn prompt(
        &self,
        suite: usize,
        own: &SuiteData,
        row: u64,
    ) -> Result<(u64, Judged), WorkError> {
        let rollout = &self.config.spec.rollout;
        let SuiteData { suite: settings, data } = own;
        let spec = &settings.data;
        let prompt = data.prompt(row).map_err(InputError::from)?;
        let max_new_tokens = spec.max_new_tokens.unwrap_or(rollout.max_new_tokens);
        let lengths = self.input.lengths(&self.config.spec, max_new_tokens);
        let max_new_tokens =
            self.input.room("evaluation", prompt.row, prompt.tokens.len(), lengths)?;
        let temperature = spec.temperature.unwrap_or(rollout.temperature);
        let samples = spec.samples;
        let wanted = |index| SampleRequest {
            key: Key {
                purpose: Purpose::Evaluation,
                step: self.version.step,
                position: row | (suite as u64) << SUITE_BIT,
                index,
                turn: 0,
            },
            temperature: if index < samples { temperature } else { 0.0 },
            top_p: if index < samples { spec.top_p.unwrap_or(1.0) } else { 1.0 },
            max_new_tokens,
            stop: Vec::new(),
            live: None,
        };
        let wanted: Vec<_> = (0..=samples).map(wanted).collect();
        let (input, sampler, weights) = (self.input, &self.sampler, self.weights);
        let tool_calls = self.tool_calls;
        let episodes = Episodes { input, data, sampler, weights, lengths, tool_calls };
        let (mut played, _) = play(&episodes, self.agents, &prompt, &wanted).await;
        let mut judgement = Judgement::default();
        while let Some((index, episode)) = played.next().await {
            let episode = episode?;
            if let Some(rejected) = &episode.rejected {
                let error = rejected.line();
                let suite = own.name();
                tracing::warn!(suite, row, %error, "a completion is left out of the evaluation");
            }
            judgement.add(index, episode, &self.input.workflow, self.version);
        }
        let rewards = self.input.rewards.as_ref();
        Ok((row, judgement.judge(settings, rewards, self.version.step, &prompt)))
    }
}
