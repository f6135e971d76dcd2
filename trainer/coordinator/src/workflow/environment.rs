//! Environment behind HTTP, or a program of each episode: one session per sample, one step per
//! completion.
//!
//! ```text
//!  prompt ─▶ reset {session, row, seed, …} ─▶ observation ─▶ completion 1
//!  completion t ─▶ step {session, turn t, completion} ─┬─ done, or t = maxTurns ─▶ end
//!                                                      └─ messages ─▶ completion t + 1
//!  server: POST {url}/reset, {url}/step      program: lines {"reset": …}, {"step": …}
//! ```
//!
//! A session has the key of its sample: a sample that starts again after a failure resets it with
//! the same seed.

use std::time::Duration;

use rljob_crds::workflow::EnvironmentWorkflow;
use rljob_protocol::status::{RewardFailure, RewardOutage};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::data::Prompt;
use crate::reward::{
    Conversation, Conversations, Reward, RewardError, Runner, Server, Service, VerifierError,
    unexpected, without_secrets,
};
use crate::rollout::request::Key;
use crate::text::Message;
use crate::workflow::next::Next;
use crate::workflow::session::session;

/// Component of the reward.
const COMPONENT: &str = "environment";
/// Roles of messages that an environment may append.
const ROLES: [&str; 2] = ["user", "tool"];
const RESET: &str = "{\"observation\": text}";
const STEP: &str = "{\"reward\": number, \"done\": boolean, \"messages\": [{\"role\": \"user\" or \
    \"tool\", \"content\": text}]}";

/// The environment of a run.
#[derive(Debug)]
pub struct Environment {
    spec: EnvironmentWorkflow,
    /// Prefix of its sessions.
    run: String,
    backend: Backend,
    /// The calls of `reset`. Their success says nothing about steps.
    resets: Service,
    /// The calls of `step`.
    steps: Service,
}

/// What answers.
#[derive(Debug)]
enum Backend {
    Server { url: String, server: Server },
    Programs(Conversations),
}

/// The environment of a sample. Dropping it kills its program.
#[derive(Debug)]
pub struct Session<'e> {
    environment: &'e Environment,
    name: String,
    backend: SessionBackend<'e>,
}

/// What answers a sample.
#[derive(Debug)]
enum SessionBackend<'e> {
    Server { url: &'e str, server: &'e Server },
    Program(Box<Mutex<Conversation<'e>>>),
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub reward: f64,
    /// Messages before the next completion.
    pub next: Next<Vec<Message>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetResponse {
    observation: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepResponse {
    #[serde(default)]
    reward: f64,
    done: bool,
    #[serde(default)]
    messages: Vec<Message>,
}

impl Environment {
    /// `run` distinguishes the sessions of runs that share a server. `runner` runs programs.
    pub fn new(
        spec: &EnvironmentWorkflow,
        run: &str,
        runner: &Runner,
    ) -> Result<Self, reqwest::Error> {
        let timeout = Duration::from_secs(spec.timeout_seconds.into());
        let (target, backend) = if let Some(of) = &spec.command {
            let programs = Conversations::new(of.command.clone(), runner, timeout, of.processes);
            (of.command.join(" "), Backend::Programs(programs))
        } else {
            let url = spec.url.clone().unwrap_or_default();
            let server = Server::new(spec.timeout_seconds, spec.concurrency)?
                .with_token(spec.token_secret_ref.as_ref());
            (without_secrets(&url), Backend::Server { url, server })
        };
        let max_outage = Duration::from_secs(spec.max_outage_seconds.into());
        let service = |route: &str| {
            Service::new(format!("{route} of the {COMPONENT} ({target})"), spec.retries, max_outage)
        };
        let (spec, run) = (spec.clone(), run.to_owned());
        Ok(Self { resets: service("reset"), steps: service("step"), spec, run, backend })
    }

    /// Session of a sample.
    pub fn session(&self, key: Key) -> Session<'_> {
        let backend = match &self.backend {
            Backend::Server { url, server } => SessionBackend::Server { url, server },
            Backend::Programs(programs) => {
                SessionBackend::Program(Box::new(Mutex::new(programs.begin())))
            }
        };
        Session { environment: self, name: session(&self.run, key), backend }
    }

    /// Rewards by turn, whose sum is the reward of the sample, from the rewards of its turns.
    pub fn turn_rewards(&self, rewards: &[f64]) -> Vec<f64> {
        let factors = std::iter::successors(Some(1.0), |factor| Some(factor * self.spec.discount));
        rewards.iter().zip(factors).map(|(reward, factor)| reward * factor).collect()
    }

    /// The outage, if the server is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.resets.outage().or_else(|| self.steps.outage())
    }

    /// The first failed try of a route; of one that has not answered since, if there is one.
    pub fn failure(&self) -> Option<RewardFailure> {
        let failures = [&self.resets, &self.steps].into_iter().filter_map(Service::failure);
        failures.min_by_key(|failure| failure.answered)
    }
}

impl Session<'_> {
    /// Starts the session, or starts it again. Returns the first observation, which follows the
    /// prompt, if there is one.
    pub async fn reset(&self, prompt: &Prompt, seed: u64) -> Result<Option<String>, RewardError> {
        let body = json!({
            "session": self.name, "row": prompt.row, "seed": seed, "prompt": prompt.text,
            "answer": prompt.answer,
        });
        let service = &self.environment.resets;
        let parse = |response: &[u8]| parse::<ResetResponse>(response, RESET);
        let response = self.request(service, "reset", body, parse).await?;
        Ok(response.observation.filter(|text| !text.is_empty()))
    }

    /// Sends the completion of turn `number`, counted from 1.
    pub async fn step(&self, number: u32, completion: &str) -> Result<Step, RewardError> {
        let body = json!({"session": self.name, "turn": number, "completion": completion});
        let is_last = number >= self.environment.spec.max_turns;
        let service = &self.environment.steps;
        self.request(service, "step", body, |response| step_of(response, is_last)).await
    }

    async fn request<T>(
        &self,
        service: &Service,
        route: &str,
        body: Value,
        parse: impl Fn(&[u8]) -> Result<T, VerifierError>,
    ) -> Result<T, RewardError> {
        let (parse, body) = (&parse, &body);
        match &self.backend {
            SessionBackend::Server { url, server } => {
                let url = &url_of(url, route);
                let post = || async move {
                    parse(&server.call(server.client.post(url).json(body)).await?)
                };
                service.call(post).await
            }
            SessionBackend::Program(program) => {
                program.lock().await.add(json!({ (route): body }));
                service.call(|| async move { program.lock().await.response(parse).await }).await
            }
        }
    }
}

/// The URL of a route. A query, which may contain a token, stays at the end.
fn url_of(url: &str, route: &str) -> String {
    let (path, query) = match url.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (url, String::new()),
    };
    format!("{}/{route}{query}", path.trim_end_matches('/'))
}

impl Step {
    /// The reward of the turn, of which `verified` is the part of the verifiers.
    pub fn added_to(&self, verified: Reward) -> Reward {
        let mut reward = verified;
        reward.value += self.reward;
        reward.components.insert(COMPONENT.to_owned(), self.reward);
        reward
    }
}

fn step_of(response: &[u8], is_last: bool) -> Result<Step, VerifierError> {
    let StepResponse { reward, done, messages } = parse(response, STEP)?;
    if let Some(message) = messages.iter().find(|message| !ROLES.contains(&&*message.role)) {
        let reason = format!("a message has the role \"{}\"", message.role);
        return Err(unexpected(response, STEP, &reason));
    }
    if !done && messages.is_empty() {
        return Err(unexpected(response, STEP, &"the episode is not done and has no messages"));
    }
    Ok(Step { reward, next: Next::unless(done, is_last, || messages) })
}

fn parse<T: serde::de::DeserializeOwned>(
    response: &[u8],
    expected: &'static str,
) -> Result<T, VerifierError> {
    serde_json::from_slice(response).map_err(|error| unexpected(response, expected, &error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Environment, Key, Message, Next, Step, step_of, url_of};
    use crate::reward::Runner;
    use crate::rollout::request::Purpose;

    fn environment() -> Environment {
        let spec = json!({"url": "http://games.lab", "discount": 0.5});
        let runner = Runner::Program("runner".into());
        Environment::new(&serde_json::from_value(spec).unwrap(), "Run", &runner).unwrap()
    }

    #[test]
    fn an_episode_ends_when_it_is_done_or_has_all_turns() {
        let open = br#"{"reward": 0.5, "done": false, "messages": [
            {"role": "user", "content": "No."}]}"#;
        let step = |next| Step { reward: 0.5, next };
        assert_eq!(step_of(open, false).unwrap(), step(Next::Turn(vec![Message::user("No.")])));
        assert_eq!(step_of(open, true).unwrap(), step(Next::Limit));
        let done = br#"{"done": true}"#;
        for is_last in [false, true] {
            let end = Step { reward: 0.0, next: Next::End };
            assert_eq!(step_of(done, is_last).unwrap(), end);
        }
    }

    #[test]
    fn unusable_responses_are_errors_with_their_reason() {
        let cases = [
            (r#"{"done": false}"#, "the episode is not done and has no messages"),
            (r#"{"done": true, "score": 1}"#, "unknown field `score`"),
            (r#"{"reward": 1}"#, "missing field `done`"),
            (
                r#"{"done": false, "messages": [{"role": "assistant", "content": ""}]}"#,
                "a message has the role \"assistant\"",
            ),
        ];
        for (response, reason) in cases {
            let error = step_of(response.as_bytes(), false).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid response `{response}`, ")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn rewards_are_discounted_by_the_turns_before_their_own() {
        assert_eq!(environment().turn_rewards(&[1.0, 1.0, -2.0]), [1.0, 0.5, -0.5]);
    }

    #[test]
    fn a_session_has_the_key_of_its_sample_and_a_url_keeps_its_query() {
        let environment = environment();
        let key = Key { purpose: Purpose::Rollout, step: 2, position: 7, index: 3, turn: 0 };
        for key in [key, Key { turn: 1, ..key }] {
            assert_eq!(environment.session(key).name, "run-rollout-2-7-3");
        }
        let url = url_of("http://games.lab/sums/?key=1", "step");
        assert_eq!(url, "http://games.lab/sums/step?key=1");
    }
}
