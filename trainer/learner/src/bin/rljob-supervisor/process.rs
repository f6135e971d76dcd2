//! One learner process: started, read and, when asked, ended; its state is a value that anyone can
//! look at.
//!
//! ```text
//!  LearnerProcess ── stop() ──▶ task ── SIGKILL ──▶ rljob-learner
//!        ▲                       │ ◀── standard error, standard output ──┘
//!        │                       ├── "[rank 3] …" ──▶ own standard error
//!        └── state ◀─────────────┴── beats ──▶ pulse
//! ```
//!
//! A learner is killed and not asked to end: one that hangs would not hear it, and none has
//! anything to do that a checkpoint has not done.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rljob_protocol::supervisor::{LearnerState, SUPERVISOR_PID_VARIABLE};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::heartbeat::{Heard, listen};
use crate::log_tail::LogTail;

/// Standard error is read on for so long after the process ended: a child of its own may hold it
/// open.
const DRAIN: Duration = Duration::from_secs(1);
/// Exit code reported for a learner that could not be started, as a shell does.
const NOT_STARTED: i32 = 127;

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnerCommand {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Global rank, for its log prefix.
    pub rank: u32,
}

/// A learner process, which is killed when this is dropped.
#[derive(Debug)]
pub struct LearnerProcess {
    /// How it ended, once it has.
    end: watch::Receiver<Option<LearnerState>>,
    heard: Arc<Mutex<Heard>>,
    stop: CancellationToken,
    pid: Option<u32>,
}

impl LearnerProcess {
    /// Starts it inside the current tokio runtime. A program that cannot be started is a learner
    /// that exited with code 127. `changed` is told when it ends.
    pub fn start(command: LearnerCommand, changed: watch::Sender<()>) -> Self {
        let stop = CancellationToken::new();
        let (sender, end) = watch::channel(None);
        let heard = Arc::new(Mutex::new(Heard::nothing(Instant::now())));
        let spawned = Command::new(&command.program)
            .args(&command.arguments)
            .env(SUPERVISOR_PID_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let pid = spawned.as_ref().ok().and_then(Child::id);
        let (stopped, hearing) = (stop.clone(), Arc::clone(&heard));
        tokio::spawn(async move {
            let ended = match spawned {
                Ok(child) => supervise(child, command.rank, stopped, &hearing).await,
                Err(error) => LearnerState::Exited {
                    code: NOT_STARTED,
                    log_tail: format!("failed to start `{}`: {error}", command.program.display()),
                },
            };
            sender.send_replace(Some(ended));
            changed.send_replace(());
        });
        Self { end, heard, stop, pid }
    }

    /// What it is doing.
    pub fn state(&self) -> LearnerState {
        let pulse =
            || self.heard.lock().unwrap_or_else(PoisonError::into_inner).pulse(Instant::now());
        self.end.borrow().clone().unwrap_or_else(|| LearnerState::Running(pulse()))
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Its process id; none if it could not be started.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Kills it. Returns at once.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) {
        // An error means that the task is gone, and the process with it.
        let _ = self.end.wait_for(Option::is_some).await;
    }
}

async fn supervise(
    mut child: Child,
    rank: u32,
    stop: CancellationToken,
    heard: &Mutex<Heard>,
) -> LearnerState {
    let mut tail = LogTail::default();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let status = {
        let mut reading = std::pin::pin!(async {
            tokio::join!(listen(stdout, heard), pass_on(stderr, rank, &mut tail))
        });
        let mut ending = std::pin::pin!(end(&mut child, &stop));
        tokio::select! {
            status = &mut ending => {
                let _ = tokio::time::timeout(DRAIN, reading).await;
                status
            }
            _ = &mut reading => ending.await,
        }
    };
    match status {
        Ok(status) => LearnerState::Exited { code: exit_code(status), log_tail: tail.text() },
        Err(error) => {
            tail.note(format!("failed to wait for the learner of rank {rank}: {error}"));
            LearnerState::Exited { code: NOT_STARTED, log_tail: tail.text() }
        }
    }
}

/// Waits for the process to end by itself or, once `stop` is cancelled, ends it.
async fn end(child: &mut Child, stop: &CancellationToken) -> std::io::Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => return status,
        () = stop.cancelled() => {}
    }
    child.start_kill()?;
    child.wait().await
}

async fn pass_on(stderr: Option<ChildStderr>, rank: u32, tail: &mut LogTail) {
    let Some(mut stderr) = stderr else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for line in tail.push(&buffer[..read]) {
            eprintln!("[rank {rank}] {line}");
        }
    }
    if let Some(line) = tail.finish() {
        eprintln!("[rank {rank}] {line}");
    }
}

/// The exit code; 128 + n for signal n.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(NOT_STARTED)
}

#[cfg(test)]
mod tests {
    use super::{LearnerCommand, LearnerProcess};
    use rljob_protocol::supervisor::LearnerState;
    use tokio::sync::watch;

    async fn run(script: &str, stop: bool) -> LearnerState {
        let command = LearnerCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            rank: 0,
        };
        let mut process = LearnerProcess::start(command, watch::channel(()).0);
        if stop {
            process.stop();
        }
        process.ended().await;
        process.state()
    }

    #[tokio::test]
    async fn an_exit_is_reported_with_its_code_and_last_lines() {
        let state = run("echo loading >&2; echo out of memory >&2; exit 7", false).await;
        assert_eq!(
            state,
            LearnerState::Exited { code: 7, log_tail: "loading\nout of memory".to_owned() }
        );
    }

    #[tokio::test]
    async fn a_signal_is_128_and_its_number() {
        assert_eq!(
            run("kill -9 $$", false).await,
            LearnerState::Exited { code: 137, log_tail: String::new() }
        );
        assert_eq!(
            run("exec sleep 600", true).await,
            LearnerState::Exited { code: 137, log_tail: String::new() }
        );
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_exit_with_code_127() {
        let command =
            LearnerCommand { program: "/nonexistent/learner".into(), arguments: vec![], rank: 0 };
        let mut process = LearnerProcess::start(command, watch::channel(()).0);
        process.ended().await;
        let log_tail =
            "failed to start `/nonexistent/learner`: No such file or directory (os error 2)"
                .to_owned();
        assert_eq!(process.state(), LearnerState::Exited { code: 127, log_tail });
    }
}
