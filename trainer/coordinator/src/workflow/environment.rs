//! Environment behind HTTP: one session per sample, one step per completion.
//!
//! ```text
//!  completion 1 ─▶ POST /reset {session, row, seed, …} ─▶ POST /step {session, turn 1, completion}
//!  completion t ─▶ POST /step {session, turn t, completion} ─┬─ done, or t = maxTurns ─▶ end
//!                                                            └─ messages ─▶ completion t + 1
//! ```
//!
//! A session has the key of its sample: a sample that starts again after a failure resets it with
//! the same seed.

use std::time::Duration;

use rljob_crds::workflow::EnvironmentWorkflow;
use rljob_protocol::status::RewardOutage;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::data::Prompt;
use crate::reward::{
    Reward, RewardError, Server, Service, VerifierError, unexpected, without_secrets,
};
use crate::rollout::request::Key;
use crate::text::Message;
use crate::workflow::next::Next;
use crate::workflow::session::session;

/// Component of the reward.
const COMPONENT: &str = "environment";
/// Roles of messages that an environment may append.
const ROLES: [&str; 2] = ["user", "tool"];
const RESET: &str = "{}";
const STEP: &str = "{\"reward\": number, \"done\": boolean, \"messages\": [{\"role\": \"user\" or \
    \"tool\", \"content\": text}]}";

/// The environment of a run.
#[derive(Debug)]
pub struct Environment {
    spec: EnvironmentWorkflow,
    /// Prefix of its sessions.
    run: String,
    server: Server,
    service: Service,
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
struct ResetResponse {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepResponse {
    #[serde(default)]
    reward: f64,
    done: bool,
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct StepRequest<'a> {
    session: &'a str,
    turn: u32,
    completion: &'a str,
}

impl Environment {
    /// `run` distinguishes the sessions of runs that share a server.
    pub fn new(spec: &EnvironmentWorkflow, run: &str) -> Result<Self, reqwest::Error> {
        let label = format!("{COMPONENT} ({})", without_secrets(&spec.url));
        let max_outage = Duration::from_secs(spec.max_outage_seconds.into());
        Ok(Self {
            spec: spec.clone(),
            run: run.to_owned(),
            server: Server::new(spec.timeout_seconds, spec.concurrency)?
                .with_token(spec.token_secret_ref.as_ref()),
            service: Service::new(label, spec.retries, max_outage),
        })
    }

    /// Session of a sample.
    pub fn session(&self, key: Key) -> String {
        session(&self.run, key)
    }

    /// Starts a session, or starts it again.
    pub async fn reset(
        &self,
        session: &str,
        prompt: &Prompt,
        seed: u64,
    ) -> Result<(), RewardError> {
        let body = json!({
            "session": session, "row": prompt.row, "seed": seed, "prompt": prompt.text,
            "answer": prompt.answer,
        });
        let (url, body) = (&self.url("reset"), &body);
        let reset = || async move {
            let response = self.post(url, body).await?;
            parse::<ResetResponse>(&response, RESET).map(drop)
        };
        self.service.call(reset).await
    }

    /// Sends the completion of turn `number`, counted from 1.
    pub async fn step(
        &self,
        session: &str,
        number: u32,
        completion: &str,
    ) -> Result<Step, RewardError> {
        let (url, body) = (&self.url("step"), &StepRequest { session, turn: number, completion });
        let is_last = number >= self.spec.max_turns;
        let step = || async move { step_of(&self.post(url, body).await?, is_last) };
        self.service.call(step).await
    }

    /// Rewards by turn, whose sum is the reward of the sample, from the rewards of its turns.
    pub fn turn_rewards(&self, rewards: &[f64]) -> Vec<f64> {
        let factors = std::iter::successors(Some(1.0), |factor| Some(factor * self.spec.discount));
        rewards.iter().zip(factors).map(|(reward, factor)| reward * factor).collect()
    }

    /// The outage, if the server is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.service.outage()
    }

    async fn post(&self, url: &str, body: &impl Serialize) -> Result<Vec<u8>, VerifierError> {
        self.server.call(self.server.client.post(url).json(body)).await
    }

    /// The URL of a route. A query, which may contain a token, stays at the end.
    fn url(&self, route: &str) -> String {
        let (path, query) = match self.spec.url.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (self.spec.url.as_str(), String::new()),
        };
        format!("{}/{route}{query}", path.trim_end_matches('/'))
    }
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

    use super::{Environment, Key, Message, Next, Step, step_of};
    use crate::rollout::request::Purpose;

    fn environment(url: &str) -> Environment {
        let spec = json!({"url": url, "discount": 0.5});
        Environment::new(&serde_json::from_value(spec).unwrap(), "Run").unwrap()
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
        let environment = environment("http://games.lab");
        assert_eq!(environment.turn_rewards(&[1.0, 1.0, -2.0]), [1.0, 0.5, -0.5]);
    }

    #[test]
    fn a_session_has_the_key_of_its_sample_and_a_url_keeps_its_query() {
        let environment = environment("http://games.lab/sums/?key=1");
        let key = Key { purpose: Purpose::Rollout, step: 2, position: 7, index: 3, turn: 0 };
        assert_eq!(environment.session(key), "run-rollout-2-7-3");
        assert_eq!(environment.session(Key { turn: 1, ..key }), "run-rollout-2-7-3");
        assert_eq!(environment.url("step"), "http://games.lab/sums/step?key=1");
    }
}
