//! `rljob with-parent`: runs a user program whose processes must not outlive `rljob run`, however
//! it exits.
//!
//! ```text
//!  rljob run ── pipe ──▶ with-parent ──▶ with-parent --exec ─(execve)▶ program ──▶ descendants
//!                            │           killed when with-parent exits
//!                            ├ adopts orphaned descendants as their subreaper
//!                            └ pipe closed or program exited: kills all descendants,
//!                              also those in other sessions
//! ```
//!
//! If it is killed by SIGKILL itself, the program is killed, but not descendants in other sessions.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::stdin;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use rljob_sandbox::children::{kill_children, reaper};
use rustix::process::{
    Pid, Signal, WaitStatus, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a program killed by signal n is this + n, as in shells.
const SIGNALLED: i32 = 128;

/// Runs a program and kills it with all descendants when standard input, a pipe, closes.
#[derive(clap::Args, Debug)]
pub struct WithParentArgs {
    /// Execute the program as a child of the process with this PID, and be killed with it.
    #[arg(long, value_name = "PARENT")]
    pub exec: Option<i32>,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Runs the program, forwards SIGTERM, and returns the program's exit code. Await on the main
/// thread: the program is killed when the thread that started it exits.
///
/// # Errors
/// The program cannot be started, or standard input is not a pipe.
pub async fn with_parent(arguments: &WithParentArgs) -> anyhow::Result<ExitCode> {
    if let Some(parent) = arguments.exec {
        return exec_program(&arguments.command, parent).map(|never| match never {});
    }
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let lifeline = stdin().as_fd().try_clone_to_owned().and_then(pipe::Receiver::from_owned_fd);
    let mut lifeline =
        lifeline.context("standard input must be a pipe; closing it stops the program")?;
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    let program = start(&arguments.command)?;
    let mut ended = reaper();
    let code = loop {
        tokio::select! {
            reaped = ended.recv() => match reaped {
                Some((pid, status)) if pid == program => break exit_code(status),
                Some(_) => {}
                None => anyhow::bail!("the program was reaped by another process"),
            },
            // The process may have exited.
            _ = terminate.recv() => drop(kill_process(program, Signal::TERM)),
            // The pipe carries no data.
            _ = lifeline.read_u8() => break SIGNALLED.saturating_add(Signal::KILL.as_raw()),
        }
    };
    loop {
        kill_children(&BTreeSet::new());
        if ended.recv().await.is_none() {
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
        }
    }
}

fn start(command: &[String]) -> anyhow::Result<Pid> {
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    let mut stage = Command::new(own);
    stage
        .args(["with-parent", "--exec", &getpid().as_raw_nonzero().to_string(), "--"])
        .args(command)
        .stdin(Stdio::null());
    let child = stage.spawn().context("failed to start a process for the program")?;
    Ok(Pid::from_child(&child))
}

fn exec_program(command: &[String], parent: i32) -> anyhow::Result<Infallible> {
    // Kept across execve.
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to set the parent death signal")?;
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the parent exited during the start");
    let (program, words) = command.split_first().context("no program is given")?;
    Err(Command::new(program).args(words).exec())
        .with_context(|| format!("failed to start {program}"))
}

fn exit_code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| SIGNALLED.saturating_add(signal)))
        .unwrap_or(SIGNALLED)
}
