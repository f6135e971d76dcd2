//! Runs a program that is not rljob's own, so that nothing of it outlives `rljob run`: whatever it
//! starts, and however `rljob run` ends.
//!
//! ```text
//!  rljob run ── pipe ──▶ rljob with-parent ──▶ rljob with-parent --exec ─(becomes)▶ the program ──▶ its children, theirs …
//!                          │ adopts whoever loses its parent                        killed when with-parent is
//!                          └ the pipe is closed, or the program has ended: kills all that are left, new sessions included
//! ```
//!
//! If it is killed itself by SIGKILL, the program goes with it, but not what that has started in
//! sessions of its own.

use std::convert::Infallible;
use std::fs;
use std::io::stdin;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Ended processes that were not looked at yet.
const QUEUE: usize = 64;
/// Exit code of a program that was ended by signal n is this and n, as in shells.
const SIGNALLED: i32 = 128;

/// Runs a program that ends, with all that it started, when standard input, a pipe, is closed.
#[derive(clap::Args, Debug)]
pub struct WithParentArgs {
    /// Become the program, as a child of the process with this number and ended with it.
    #[arg(long, value_name = "PARENT")]
    pub exec: Option<i32>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Runs the program to its end, and passes SIGTERM on to it; the exit code is its own. Must be
/// awaited on the main thread, to which the program's life is tied.
///
/// # Errors
/// The program cannot be started, or standard input is no pipe.
pub async fn with_parent(arguments: &WithParentArgs) -> anyhow::Result<ExitCode> {
    if let Some(parent) = arguments.exec {
        return become_program(&arguments.command, parent).map(|never| match never {});
    }
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let lifeline = stdin().as_fd().try_clone_to_owned().and_then(pipe::Receiver::from_owned_fd);
    let mut lifeline = lifeline
        .context("standard input is to be a pipe that is closed when the program is to end")?;
    set_child_subreaper(Some(getpid())).context("failed to become the parent of orphans")?;
    let program = start(&arguments.command)?;
    let mut ended = reaper();
    let code = loop {
        tokio::select! {
            reaped = ended.recv() => match reaped {
                Some((pid, status)) if pid == program => break exit_code(status),
                Some(_) => {}
                None => anyhow::bail!("the program is gone"),
            },
            // One that has just ended needs no signal.
            _ = terminate.recv() => drop(kill_process(program, Signal::TERM)),
            // Nobody writes into it.
            _ = lifeline.read_u8() => break SIGNALLED + Signal::KILL.as_raw(),
        }
    };
    loop {
        kill_children();
        if ended.recv().await.is_none() {
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
        }
    }
}

fn start(command: &[String]) -> anyhow::Result<Pid> {
    let own = std::env::current_exe().context("failed to find this program's own file")?;
    let mut stage = Command::new(own);
    stage
        .args(["with-parent", "--exec", &getpid().as_raw_nonzero().to_string(), "--"])
        .args(command)
        .stdin(Stdio::null());
    let child = stage.spawn().context("failed to start the program's process")?;
    Ok(Pid::from_child(&child))
}

fn become_program(command: &[String], parent: i32) -> anyhow::Result<Infallible> {
    // The order outlives exec.
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to ask for a signal at the parent's end")?;
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the parent ended during start");
    let (program, words) = command.split_first().context("no program is named")?;
    Err(Command::new(program).args(words).exec())
        .with_context(|| format!("failed to start {program}"))
}

/// Waits for every child, own or adopted; the channel closes when there is none left.
fn reaper() -> mpsc::Receiver<(Pid, WaitStatus)> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some(ended)) if sender.blocking_send(ended).is_ok() => {}
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some(_)) | Err(_) => return,
            }
        }
    });
    receiver
}

/// Kills every child. Theirs become this process's then.
fn kill_children() {
    let own = getpid().as_raw_nonzero().to_string();
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| parent_of(&stat) == Some(&own))
    };
    for pid in pids.filter(is_child).filter_map(Pid::from_raw) {
        // One that has just ended needs no signal.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reads `/proc/PID/stat`: `pid (name) state parent …`, where the name may hold anything,
/// parentheses included.
fn parent_of(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)
}

fn exit_code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| SIGNALLED + signal))
        .unwrap_or(SIGNALLED)
}

#[cfg(test)]
mod tests {
    use super::parent_of;

    #[test]
    fn the_parent_is_read_whatever_the_name_is() {
        assert_eq!(parent_of("17 (sh) S 42 17 17 0"), Some("42"));
        assert_eq!(parent_of("17 (a) S 2 (b) Z 42 17"), Some("42"));
        assert_eq!(parent_of(""), None);
    }
}
