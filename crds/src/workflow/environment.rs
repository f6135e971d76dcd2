//! Settings of the `environment` workflow.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::one;
use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// Settings of the `environment` workflow: an HTTP server (`url`) or a program (`command`) answers
/// each completion with a reward and with messages, until the episode is done.
///
/// Before the first completion, `POST {url}/reset` with `{"session": text, "row": number, "seed":
/// number, "prompt": text, "answer": text or null}` starts the session, or starts it again; the
/// response is `{"observation": text}`, which is appended to the prompt of the row, or `{}`. After
/// each completion, `POST {url}/step` with `{"session": text, "turn": number from 1, "completion":
/// text}` has the response `{"reward": number, "done": true or false, "messages": [{"role": "user"
/// or "tool", "content": text}]}`. `reward` is 0 and `messages` are empty if absent. The response
/// to a repeated request must be that to the first one.
///
/// The reward of a turn is that of the environment plus the sum of `rewards`; the reward of the
/// sample is Σ reward of turn t · `discount` ^ (t − 1). Messages are not trained on.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = exactly_one(Self::MEMBERS),
    validation = Rule::new("has(self.url) || !has(self.tokenSecretRef)")
        .message("tokenSecretRef belongs to url: programs have no token")
)]
pub struct EnvironmentWorkflow {
    /// URL of the server, without `/reset` and `/step`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: Option<String>,
    /// Program that runs for each episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<EnvironmentCommand>,
    /// Key of a Secret with a bearer token, read for every request; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Maximum number of turns. Default 8.
    #[serde(default = "max_turns")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_turns: u32,
    /// Maximum number of tokens of a sample after its prompt: completions and messages. Messages
    /// that leave no token for a completion are not appended; the sample then ends.
    /// `rollout.maxNewTokens` limits each completion. Default the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
    /// Factor of the reward for each turn before its own. Evaluations do not discount. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub discount: f64,
    /// Seconds per try of a request; with `command`, of each line, including the start of the
    /// program. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Then the sample is rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests to `url`. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for an environment that is down, as for a reward of kind
    /// `http`. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

impl Union for EnvironmentWorkflow {
    const MEMBERS: &'static [&'static str] = &["url", "command"];
}

/// A program that is the environment of one episode. It reads the requests of the server, one JSON
/// line each, on standard input, and answers each with one JSON line on standard output:
/// `{"reset": body}`, then `{"step": body}` for each completion. It is killed with all of its
/// descendants when the episode ends. A program that fails, times out, answers with something else,
/// or whose pod is lost, is started again and gets the lines so far: its responses must be those to
/// the first requests.
///
/// On a cluster, it runs where commands of rewards run: in the container `rewards` of the
/// coordinator's pod, or in verifier pods, without network.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentCommand {
    /// Program and arguments. With `rljob run`, a program with a slash is relative to the job file.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub command: Vec<String>,
    /// Episodes with a program at the same time, in each verifier pod. Default 16.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 1024))]
    pub processes: u32,
}

fn max_turns() -> u32 {
    8
}

fn processes() -> u32 {
    16
}
