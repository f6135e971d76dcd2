//! Workflow `agent`: one program per sample requests the completions through the proxy.
//!
//! ```text
//!  slot ─▶ try: session of the proxy, program in the reward runner ─┬─ exit 0 ─▶ Episode
//!           ▲                                                       └─ failed ─┐
//!           └──────── pod lost, no runner, or retries left ◀───────────────────┤
//!                               sample rejected, or the run fails ◀────────────┘
//! ```
//!
//! Every try begins with an empty session and the same seeds. A try whose pod is lost, and one for
//! which no runner is available, are no failures of the program.

pub mod calls;
mod choice;
pub mod conversation;
pub mod failure;
mod partial;
pub mod progress;
pub mod session;
mod text_work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rljob_crds::RLJobSpec;
use rljob_crds::agent::AgentWorkflow;
use rljob_protocol::status::RewardOutage;
use tokio_util::sync::CancellationToken;

use self::conversation::Node;
use self::failure::AgentFailure;
use self::progress::Progress;
use self::session::Session;
use super::episode::{Episode, Rejected, Turn};
use super::episodes::Episodes;
use super::sampler::SampleRequest;
use super::score::{Scored, Verdict, score};
use crate::data::Prompt;
use crate::proxy::{self, LoopbackPort, Proxy};
use crate::reward::call::LostPods;
use crate::reward::session::{API_KEY_VARIABLE, BASE_URL_VARIABLE, Start};
use crate::reward::{Pool, Reward, Runner, Service, VerifierError, run_agent};
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
    pool: Pool,
    proxy: Proxy,
    /// Port of the proxy; none for programs in verifier pods.
    port: Option<LoopbackPort>,
    service: Service,
    rejected_in_a_row: AtomicU32,
}

/// The result of a try that had a runner.
type Tried = Result<Result<Episode, AgentFailure>, WorkError>;

impl Agents {
    /// Listens for agents, if the job has them and they run in this pod or on this machine.
    pub fn open(spec: &RLJobSpec, runner: &Runner) -> std::io::Result<Option<Self>> {
        let Some(agent) = spec.agent() else { return Ok(None) };
        let rules = proxy::request::Rules { temperature: spec.rollout.temperature };
        let port = match runner {
            Runner::Socket(_) | Runner::Program(_) => Some(LoopbackPort::open()?),
            Runner::Pods(_) => None,
        };
        let max_outage = Duration::from_secs(agent.max_outage_seconds.into());
        Ok(Some(Self {
            spec: agent.clone(),
            pool: Pool::new(runner, agent.processes),
            proxy: Proxy::new(rules),
            port,
            service: Service::new("the programs of agents".to_owned(), 0, max_outage),
            rejected_in_a_row: AtomicU32::new(0),
        }))
    }

    /// Serves the port of the proxy, if it has one, until `stop`.
    pub async fn serve(&self, stop: CancellationToken) -> std::io::Result<()> {
        match &self.port {
            Some(port) => port.serve(&self.proxy, proxy::LIMITS, stop).await,
            None => Ok(()),
        }
    }

    /// The outage, if no runner is available.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.service.outage()
    }

    /// One sample.
    pub async fn episode(
        &self,
        episodes: &Episodes<'_>,
        prompt: &Prompt,
        request: &SampleRequest,
    ) -> Result<Episode, WorkError> {
        let session = Session { episodes, prompt, request };
        let mut tries = 0_u32;
        loop {
            tries = tries.saturating_add(1);
            let failure = match self.service.call(|| self.attempt(session)).await?? {
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
                return Ok(Episode::rejected(Rejected::Agent(failure)));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// One try: runs the program and answers its calls until it ends. Repeats it if its pod is
    /// lost.
    ///
    /// # Errors
    /// No runner is available.
    async fn attempt(&self, session: Session<'_>) -> Result<Tried, VerifierError> {
        let _call = self.pool.begin();
        let mut lost = LostPods::default();
        let fields = session.prompt.fields.as_deref();
        let limit = Duration::from_secs(self.spec.timeout_seconds.into());
        loop {
            // The timeout starts after the wait for a slot.
            let slot = self.pool.acquire().await?;
            let mut opened = self.proxy.session(rand::random());
            let start = self.start(opened.api_key.clone());
            let program = run_agent(&slot, &start, &fields, self.proxy.router(), limit);
            let max_turns = self.spec.max_turns;
            let answered = calls::answer(&mut opened, session, max_turns, program).await;
            let (ended, progress) = match answered {
                Ok(answered) => answered,
                Err(error) => return Ok(Err(error)),
            };
            let error = match ended {
                Ok(()) => {
                    drop(slot);
                    return Ok(episode(session, progress).await);
                }
                Err(error) => slot.failed(error, &mut lost),
            };
            match error {
                None => {}
                Some(error) if error.is_outage() => return Err(error),
                Some(error) => return Ok(Ok(Err(AgentFailure::of(error)))),
            }
        }
    }

    /// The program with the key of a session.
    fn start(&self, api_key: String) -> Start {
        let base_url = self.port.as_ref().map(|port| (BASE_URL_VARIABLE, port.base_url()));
        let variables = base_url.into_iter().chain([(API_KEY_VARIABLE, api_key)]);
        let variables: BTreeMap<String, String> =
            variables.map(|(name, value)| (name.to_owned(), value)).collect();
        let is_forwarded = self.port.is_none();
        Start::Agent { command: self.spec.command.clone(), variables, is_forwarded }
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
                    let rejected = Some(Rejected::Verifier(Some(Box::new(node.sampled)), error));
                    return Ok(Ok(Episode { turns, ended_by_limit: false, rejected }));
                }
            }
        }
        if is_posted {
            scored.reward.value += posted;
            scored.reward.components.insert(POSTED.to_owned(), posted);
        }
        let Node { given, given_text, sampled, .. } = node;
        turns.push(Turn { given, given_text, sampled, scored });
    }
    Ok(Ok(Episode { turns, ended_by_limit, rejected: None }))
}
