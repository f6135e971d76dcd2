//! `rljob-reward-runner`: runs the commands of `command` rewards, without keys and network, and the
//! programs of agents, without keys.
//!
//! ```text
//!  coordinator ── Unix socket ──▶ serve ─(one process per connection)─▶ session ─▶ exec ─▶ command
//!                                   │ PID 1 of its container               │        limits, execve
//!                                   └ reaps orphans                        └ kills all descendants
//! ```
//!
//! In a pod it is a container without tokens, bucket keys, service account and run volume. In a
//! verifier pod, `bridge` in another container with the pod's key accepts the connections of the
//! coordinator, and the session of an agent forwards its requests on them. For an image of the
//! user, `copy` in an init container puts the runner into a folder of the pod. With `rljob run`,
//! the coordinator starts a session itself.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod bridge;
mod copy;
mod forward;
mod limits;
mod log;
mod serve;
mod session;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs commands for the coordinator.
#[derive(Debug, Parser)]
#[command(version)]
enum Arguments {
    /// Accepts connections on a Unix socket and starts a session for each.
    Serve {
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// Lets the programs of agents use the network; commands of rewards cannot.
        #[arg(long)]
        network: bool,
    },
    /// Copies this program and `rljob-sandbox`, for containers whose image lacks them.
    Copy {
        /// An existing folder.
        #[arg(long, value_name = "PATH")]
        folder: PathBuf,
    },
    /// Connects clients that have proved their name by TLS with the socket of `serve`.
    Bridge(bridge::Arguments),
    /// Runs one command for the connection on standard input.
    Session {
        /// Lets the program of an agent use the network.
        #[arg(long)]
        network: bool,
    },
    /// Limits this process and replaces it by the command.
    Exec {
        /// Process whose exit kills the command.
        #[arg(long, value_name = "PID")]
        parent: i32,
        /// Lets the command use the network.
        #[arg(long)]
        network: bool,
        /// Program and arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::start();
            rljob_logging::print_fatal(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    // The filter is installed before the start of other threads.
    match arguments {
        Arguments::Serve { socket, network } => {
            limits::filter_calls(network)?;
            log::start();
            runtime(serve::serve(&socket, network))
        }
        Arguments::Copy { folder } => copy::copy(&folder),
        Arguments::Bridge(arguments) => runtime(bridge::run(arguments)),
        Arguments::Session { network } => {
            limits::filter_calls(network)?;
            runtime(session::run())
        }
        Arguments::Exec { parent, command, network } => {
            limits::filter_calls(network)?;
            // Text: the session sends it to the coordinator.
            eprintln!("{}", limits::exec(parent, &command));
            std::process::exit(limits::NOT_STARTED.into())
        }
    }
}

/// On this thread: a command is killed when the thread that started it exits.
fn runtime(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
