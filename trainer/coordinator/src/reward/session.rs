//! Messages between the coordinator and the reward runner: one connection per process of a command.
//!
//! ```text
//!  coordinator ── Start, then one request line at a time ──▶ session ── stdin ──▶ command
//!              ◀── one Answer for each request ───────────           ◀── stdout ──
//!  closing the connection kills the command with all of its descendants
//! ```
//!
//! Every message is a line of at most [`MAX_LINE`] bytes.
//!
//! The connection of an agent in a verifier pod is one of HTTP/2 after the request line, with the
//! coordinator as its server: the session sends the requests of the program below [`AGENT_PATH`],
//! and the Answer to [`EXIT_PATH`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest line in bytes. A prompt and a completion of a million tokens each fit.
pub const MAX_LINE: usize = 64 << 20;
/// Longest line of a command's response in bytes.
pub const MAX_RESPONSE: usize = 1 << 20;

/// Program of the sandbox.
const SANDBOX: &str = "rljob-sandbox";

/// Environment variables that sessions and commands keep.
const KEPT_VARIABLES: [&str; 5] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ"];

/// Environment variables of agents: base URL and key of the API that they talk to.
pub const BASE_URL_VARIABLE: &str = "OPENAI_BASE_URL";
pub const API_KEY_VARIABLE: &str = "OPENAI_API_KEY";
pub const AGENT_VARIABLES: [&str; 2] = [BASE_URL_VARIABLE, API_KEY_VARIABLE];

/// Prefix of the paths of an agent's requests on the connection of its session.
pub const AGENT_PATH: &str = "/agent";
/// Path of the request with the Answer that ends an agent's session.
pub const EXIT_PATH: &str = "/exit";

/// The kept variables of this process.
pub fn environment() -> impl Iterator<Item = (&'static str, OsString)> {
    KEPT_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// The first message of a connection: what the session runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Start {
    /// A program with arguments.
    Command(Vec<String>),
    /// `rljob-sandbox` with arguments.
    Sandbox(Vec<String>),
    /// A program that reads one request until the end of its input, and exits.
    Agent {
        /// Program and arguments.
        command: Vec<String>,
        /// Values of [`AGENT_VARIABLES`].
        variables: BTreeMap<String, String>,
        /// Whether the session forwards the requests of the program on its connection. It then
        /// sets [`BASE_URL_VARIABLE`].
        #[serde(default)]
        is_forwarded: bool,
    },
}

impl Start {
    /// Program and arguments. `rljob-sandbox` is in the folder of the runner and writes to
    /// `scratch`.
    pub fn command(self, runner: &Path, scratch: &Path) -> Vec<OsString> {
        let (mut command, arguments) = match self {
            Self::Command(command) | Self::Agent { command, .. } => (Vec::new(), command),
            Self::Sandbox(arguments) => {
                let program = runner.with_file_name(SANDBOX).into_os_string();
                (vec![program, "--scratch".into(), scratch.into()], arguments)
            }
        };
        command.extend(arguments.into_iter().map(OsString::from));
        command
    }
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A line of the command's standard output.
    Response(String),
    /// The command's line is longer than [`MAX_RESPONSE`]; its start.
    TooLong(String),
    /// The command cannot be started.
    NotStarted(String),
    /// The command ended or closed its standard output.
    Exited {
        status: String,
        /// Last line of standard error, possibly empty.
        stderr: String,
        /// Whether the exit code is 0.
        #[serde(default)]
        succeeded: bool,
    },
}
