//! Learner process: starts it, forwards its log, records its heartbeats, and kills it on request.
//!
//! ```text
//!  LearnerProcess ── stop() ──▶ task ── SIGKILL ──▶ rljob-learner
//!        ▲                       │ ◀── standard error, standard output ──┘
//!        │                       ├── JSON line, or "[rank 3] …" ──▶ supervisor's standard error
//!        └── state ◀─────────────┴── heartbeats
//! ```
//!
//! A learner is killed with SIGKILL: one that hangs would not handle SIGTERM, and everything that
//! must survive is in a checkpoint.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rljob_logging::LogLine;
use rljob_protocol::supervisor::{LearnerState, SUPERVISOR_PID_VARIABLE};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gpus::Environment;
use crate::heartbeat::{Heartbeats, listen};
use crate::log_tail::LogTail;

/// Time to read standard error after the process exited, because a child may hold it open.
const DRAIN: Duration = Duration::from_secs(1);
/// Exit code of a learner that could not be started, as in a shell.
const NOT_STARTED: i32 = 127;

/// A program with its arguments and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Variables in addition to those of this process.
    pub environment: Environment,
    /// Global rank, for the log prefix.
    pub rank: u32,
}

/// A learner process, which is killed when this is dropped.
#[derive(Debug)]
pub struct LearnerProcess {
    /// Final state, once it has exited.
    end: watch::Receiver<Option<LearnerState>>,
    heartbeats: Arc<Mutex<Heartbeats>>,
    stop: CancellationToken,
    pid: Option<u32>,
}

impl LearnerProcess {
    /// Starts the process in the current tokio runtime and notifies `changed` when it exits. A
    /// program that cannot be started counts as exited with code 127.
    pub fn start(command: LearnerCommand, changed: watch::Sender<()>) -> Self {
        let stop = CancellationToken::new();
        let (sender, end) = watch::channel(None);
        let heartbeats = Arc::new(Mutex::new(Heartbeats::none(Instant::now())));
        let spawned = Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.environment)
            .env(SUPERVISOR_PID_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let pid = spawned.as_ref().ok().and_then(Child::id);
        let (stopped, recorded) = (stop.clone(), Arc::clone(&heartbeats));
        tokio::spawn(async move {
            let ended = match spawned {
                Ok(child) => supervise(child, command.rank, stopped, &recorded).await,
                Err(error) => LearnerState::Exited {
                    code: NOT_STARTED,
                    log_tail: format!("failed to start `{}`: {error}", command.program.display()),
                },
            };
            sender.send_replace(Some(ended));
            changed.send_replace(());
        });
        Self { end, heartbeats, stop, pid }
    }

    pub fn state(&self) -> LearnerState {
        let running = || {
            let heartbeats = self.heartbeats.lock();
            LearnerState::Running(heartbeats.ages(Instant::now()))
        };
        self.end.borrow().clone().unwrap_or_else(running)
    }

    pub fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Process id, unless the program could not be started.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Kills the process without waiting for it.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the process has exited.
    pub async fn ended(&mut self) {
        // An error means that the task ended, which drops and kills the process.
        let _ = self.end.wait_for(Option::is_some).await;
    }
}

async fn supervise(
    mut child: Child,
    rank: u32,
    stop: CancellationToken,
    heartbeats: &Mutex<Heartbeats>,
) -> LearnerState {
    let mut tail = LogTail::default();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let status = {
        let mut reading = std::pin::pin!(async {
            tokio::join!(listen(stdout, heartbeats), forward(stderr, rank, &mut tail))
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

/// Waits for the process to exit; kills it once `stop` is cancelled.
async fn end(child: &mut Child, stop: &CancellationToken) -> std::io::Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => return status,
        () = stop.cancelled() => {}
    }
    child.start_kill()?;
    child.wait().await
}

/// Writes lines of the learner's standard error to the supervisor's. JSON lines of a learner have
/// its rank; others get it as a prefix.
async fn forward(stderr: Option<ChildStderr>, rank: u32, tail: &mut LogTail) {
    let Some(mut stderr) = stderr else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for line in tail.push(buffer.get(..read).unwrap_or_default()) {
            rljob_logging::print(&forwarded(&line, rank));
        }
    }
    if let Some(line) = tail.finish() {
        rljob_logging::print(&forwarded(&line, rank));
    }
}

fn forwarded(line: &str, rank: u32) -> Cow<'_, str> {
    match LogLine::parse(line) {
        Some(_) => Cow::Borrowed(line),
        None => Cow::Owned(format!("[rank {rank}] {line}")),
    }
}

/// Exit code, or 128 + n for signal n.
fn exit_code(status: ExitStatus) -> i32 {
    let signal = || status.signal().map(|signal| signal.saturating_add(128));
    status.code().or_else(signal).unwrap_or(NOT_STARTED)
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
            environment: vec![("DEVICE", "GPU-8f2e".to_owned())],
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

    #[test]
    fn json_lines_of_a_learner_are_forwarded_without_a_prefix() {
        let json = r#"{"timestamp":"t","level":"INFO","message":"ready","role":"trainer"}"#;
        assert_eq!(super::forwarded(json, 3), json);
        assert_eq!(super::forwarded("NCCL INFO {}", 3), "[rank 3] NCCL INFO {}");
    }

    #[tokio::test]
    async fn a_learner_has_its_own_environment_beside_the_supervisors() {
        let script = r#"test -n "$PATH" && echo "$DEVICE" >&2"#;
        let log_tail = "GPU-8f2e".to_owned();
        assert_eq!(run(script, false).await, LearnerState::Exited { code: 0, log_tail });
    }

    #[tokio::test]
    async fn the_exit_code_of_a_signal_is_128_plus_its_number() {
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
    async fn a_missing_program_counts_as_exit_code_127() {
        let command = LearnerCommand {
            program: "/nonexistent/learner".into(),
            arguments: vec![],
            environment: vec![],
            rank: 0,
        };
        let mut process = LearnerProcess::start(command, watch::channel(()).0);
        process.ended().await;
        let log_tail =
            "failed to start `/nonexistent/learner`: No such file or directory (os error 2)"
                .to_owned();
        assert_eq!(process.state(), LearnerState::Exited { code: 127, log_tail });
    }
}
