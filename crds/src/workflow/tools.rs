//! Settings of the `tools` workflow.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// Settings of the `tools` workflow: the chat template describes tools to the model, the calls of a
/// completion are parsed and executed in their order, and their results follow as messages of the
/// role `tool`, before the next completion. A malformed call and a call of an unknown tool have an
/// error message as their result. The sample ends with a completion without calls, after `maxTurns`
/// completions, or when no token is left. Its reward is that of the last completion. Results are
/// not trained on. Data has `format: Chat`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolsWorkflow {
    /// Tools that the model may call.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map"))]
    #[schemars(extend("x-kubernetes-list-map-keys" = ["name"]))]
    pub tools: Vec<ToolSpec>,
    /// Format of calls. Default that of the chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ToolFormat>,
    /// Maximum number of completions of a sample. Default 8.
    #[serde(default = "max_turns")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_turns: u32,
    /// Maximum number of tokens of a sample after its prompt: completions and results. Results that
    /// leave no token for a completion are not appended; the sample then ends.
    /// `rollout.maxNewTokens` limits each completion. Default the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: Option<u32>,
}

/// Format of the tool calls of a model family.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in separate lines: Qwen 2.5 and 3.
    Qwen,
    /// `<|python_tag|>{"name": …, "parameters": {…}}`, or the object alone: Llama 3.
    Llama,
}

/// A tool: `http`, `command` or `mcp`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct ToolSpec {
    /// Name that the model calls.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[a-zA-Z0-9_-]+$"))]
    pub name: String,
    /// What the tool does, for the model.
    #[schemars(length(min = 1, max = 16_384))]
    pub description: String,
    /// JSON schema of the arguments, an object, for the model. Its keys are sorted in the prompt.
    /// The tool checks its arguments. Default an object without properties.
    #[serde(default = "no_parameters")]
    #[schemars(schema_with = "parameters")]
    pub parameters: Map<String, Value>,
    /// Server that executes the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTool>,
    /// Program that runs in the sandbox for each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandTool>,
    /// MCP server that executes the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpTool>,
}

impl Union for ToolSpec {
    const MEMBERS: &'static [&'static str] = &["http", "command", "mcp"];
}

/// A tool behind HTTP. The request is a POST of `{"name": text, "arguments": object, "session":
/// text, "turn": number from 1, "call": number from 0 in the turn}`; the body of the response, text
/// or JSON, is the result. Status 400 and 422 are for arguments that the tool rejects: the body is
/// an error message for the model. A repeated request must have the same response.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpTool {
    /// URL that calls are posted to.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: String,
    /// Key of a Secret with a bearer token, read for every request; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Seconds per try of a request. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Then the sample is rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a tool that is down, as for a reward of kind `http`.
    /// Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

/// A tool of an MCP server, with the streamable HTTP transport. The tool has one session with the
/// server, in which each call is a `tools/call`; its `_meta` has the session, turn and call of a
/// tool behind HTTP as `rljob.dev/session`, `rljob.dev/turn` and `rljob.dev/call`. The texts of the
/// content are the result, without content the structured content. The model gets an error message
/// if the result is an error, and for invalid parameters. Description and parameters are those of
/// the job, so that prompts do not depend on the server. A repeated call must have the same result.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct McpTool {
    /// URL of the server.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ]"))]
    pub url: String,
    /// Key of a Secret with a bearer token, read for every session; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Name of the tool at the server. Default that in the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub tool: Option<String>,
    /// Seconds per try of a call, including the start of a session. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Then the sample is rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent calls. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a server that is down, as for a reward of kind `http`.
    /// Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

/// A tool that is a program. It runs once per call, in the sandbox of the reward `code`: without
/// network, with files in memory that end with the call. Its standard input is the arguments, an
/// object as JSON. It exits with 0, and its standard output, without line breaks at its end, is the
/// result. The model gets an error message if it exits with another code (the last line of standard
/// error), exceeds a limit, or if its output is not UTF-8. A repeated call must have the same
/// result.
///
/// On a cluster, it runs in the container `rewards` of the coordinator's pod, with the programs of
/// its image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandTool {
    /// Program and arguments. A program with a slash is relative to `folder`; another one is
    /// searched in `/usr/local/bin`, `/usr/bin` and `/bin`.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 4096)))]
    pub command: Vec<String>,
    /// Working folder, which the program reads and cannot write to. On a cluster, in a volume of
    /// `spec.volumes`. `rljob run` resolves a relative path against the job file. Default an empty
    /// folder in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub folder: Option<String>,
    /// Seconds of a call. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Memory in MiB: address space of each process of a call, and memory of its processes
    /// together. Default 512.
    #[serde(default = "memory_mebibytes")]
    #[schemars(range(min = 64, max = 65536))]
    pub memory_mebibytes: u32,
    /// Standard output of a call in KiB. Default 64.
    #[serde(default = "output_kibibytes")]
    #[schemars(range(min = 1, max = 128))]
    pub output_kibibytes: u32,
    /// Calls that run at a time. Default 2.
    #[serde(default = "command_concurrency")]
    #[schemars(range(min = 1, max = 256))]
    pub concurrency: u32,
    /// Retries after the sandbox failed, after growing waits of at most 30 s. Then the sample is
    /// rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Seconds for which sampling waits for a sandbox that fails, as for a reward of kind `code`.
    /// Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

/// Free-form, except for the type.
fn parameters(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"type": {
            "type": "string", "enum": ["object"], "description": "Arguments are an object.",
        }},
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn no_parameters() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))])
}

fn max_turns() -> u32 {
    8
}

fn memory_mebibytes() -> u32 {
    512
}

fn output_kibibytes() -> u32 {
    64
}

fn command_concurrency() -> u32 {
    2
}
