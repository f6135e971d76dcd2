//! Workflow `agent`: one program per sample requests the completions through the proxy.
//!
//! ```text
//!  slot ─▶ try: session of the proxy, program in the reward runner ─┬─ exit 0 ─▶ Episode
//!           ▲                                                       └─ failed ─┐
//!           └─────────────── retries left ◀────────────────────────────────────┤
//!                               sample rejected, or the run fails ◀────────────┘
//! ```
//!
//! Every try begins with an empty session and the same seeds.

pub mod calls;
mod choice;
pub mod conversation;
pub mod failure;
pub mod session;
mod text_work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rljob_crds::RLJobSpec;
use rljob_crds::agent::AgentWorkflow;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::failure::AgentFailure;
use self::session::{Progress, Session};
use super::episode::{Episode, Rejected, Turn};
use super::episodes::Episodes;
use super::sampler::SampleRequest;
use super::score::{Scored, Verdict, score};
use crate::data::Prompt;
use crate::proxy::{self, Proxy};
use crate::reward::session::{AGENT_VARIABLES, Start};
use crate::reward::{Reward, Runner, run_agent};
use crate::work_error::WorkError;

/// Rejected samples in a row after which the run fails.
const MAX_REJECTED: u32 = 16;
/// Wait before a retry.
const RETRY: Duration = Duration::from_millis(500);
/// Component of a reward that the program posted.
const POSTED: &str = "agent";

/// Programs of agents and the proxy that they talk to.
#[derive(Debug)]
pub struct Agents {
    spec: AgentWorkflow,
    runner: Runner,
    proxy: Proxy,
    slots: Semaphore,
    rejected_in_a_row: AtomicU32,
}

impl Agents {
    /// Listens for agents, if the job has them.
    pub fn open(spec: &RLJobSpec, runner: &Runner) -> std::io::Result<Option<Self>> {
        let Some(agent) = spec.agent() else { return Ok(None) };
        let rules = proxy::request::Rules { temperature: spec.rollout.temperature };
        Ok(Some(Self {
            spec: agent.clone(),
            runner: runner.clone(),
            proxy: Proxy::open(rules)?,
            slots: Semaphore::new(agent.processes as usize),
            rejected_in_a_row: AtomicU32::new(0),
        }))
    }

    /// Serves the proxy until `stop`.
    pub async fn serve(&self, stop: CancellationToken) -> std::io::Result<()> {
        self.proxy.serve(stop).await
    }

    /// One sample.
    pub async fn episode(
        &self,
        episodes: &Episodes<'_>,
        prompt: &Prompt,
        request: &SampleRequest,
    ) -> Result<Episode, WorkError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        let session = Session { episodes, prompt, request };
        let mut tries = 0_u32;
        loop {
            tries = tries.saturating_add(1);
            let failure = match self.attempt(session).await? {
                Ok(episode) => {
                    self.rejected_in_a_row.store(0, Ordering::Relaxed);
                    return Ok(episode);
                }
                Err(failure) => failure,
            };
            let cause = crate::error_line(&failure);
            let (position, index) = (request.key.position, request.key.index);
            tracing::warn!(position, index, tries, cause, "an agent failed");
            if failure.is_permanent() {
                return Err(WorkError::Agent { samples: 1, source: failure });
            }
            if tries > self.spec.retries {
                let samples = self.rejected_in_a_row.fetch_add(1, Ordering::Relaxed);
                let samples = samples.saturating_add(1);
                if samples >= MAX_REJECTED {
                    return Err(WorkError::Agent { samples, source: failure });
                }
                return Ok(Episode::rejected(failure));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// One try: runs the program and answers its calls until it ends.
    async fn attempt(
        &self,
        session: Session<'_>,
    ) -> Result<Result<Episode, AgentFailure>, WorkError> {
        let mut opened = self.proxy.session(rand::random());
        let values = [self.proxy.base_url(), opened.api_key.clone()];
        let variables: BTreeMap<String, String> =
            AGENT_VARIABLES.map(str::to_owned).into_iter().zip(values).collect();
        let start = Start::Agent { command: self.spec.command.clone(), variables };
        let fields = session.prompt.fields.as_deref();
        let limit = Duration::from_secs(self.spec.timeout_seconds.into());
        let program = run_agent(&self.runner, &start, &fields);
        let program = tokio::time::timeout(limit, program);
        let max_turns = self.spec.max_turns;
        let (ended, progress) = calls::answer(&mut opened, session, max_turns, program).await?;
        match ended {
            Ok(Ok(())) => episode(session, progress).await,
            Ok(Err(error)) => Ok(Err(AgentFailure::Program(error))),
            Err(_) => Ok(Err(AgentFailure::Timeout(limit))),
        }
    }
}

/// The sample of a program that ended with success.
async fn episode(
    session: Session<'_>,
    progress: Progress,
) -> Result<Result<Episode, AgentFailure>, WorkError> {
    let Progress { conversations, reward, selected, limited, .. } = progress;
    let Some(end) = selected.or_else(|| conversations.last()) else {
        return Ok(Err(AgentFailure::NoCompletion));
    };
    let ended_by_limit = limited == Some(end);
    let input = session.episodes.input;
    let nodes = conversations.take(end);
    let is_posted = reward.is_some() || nodes.iter().any(|node| node.reward.is_some());
    if !is_posted && input.rewards.is_none() {
        return Ok(Err(AgentFailure::NoReward));
    }
    let last = nodes.len().saturating_sub(1);
    let mut turns = Vec::new();
    for (index, node) in nodes.into_iter().enumerate() {
        let posted = node.reward.unwrap_or_default()
            + if index == last { reward.unwrap_or_default() } else { 0.0 };
        let mut scored = Scored { text: node.text, reward: Reward::default() };
        if index == last && input.rewards.is_some() {
            let tokens = node.sampled.completion.tokens.clone();
            match score(input, session.prompt, tokens).await? {
                Verdict::Scored(by_rewards) => scored.reward = by_rewards.reward,
                Verdict::Rejected(error) => {
                    let rejected = Some(Rejected::Verifier(Box::new(node.sampled), error));
                    return Ok(Ok(Episode { turns, ended_by_limit: false, rejected }));
                }
            }
        }
        if is_posted {
            scored.reward.value += posted;
            scored.reward.components.insert(POSTED.to_owned(), posted);
        }
        let given_text = node.messages.iter().map(|message| message.content.as_str()).collect();
        turns.push(Turn { given: node.given, given_text, sampled: node.sampled, scored });
    }
    Ok(Ok(Episode { turns, ended_by_limit, rejected: None }))
}
