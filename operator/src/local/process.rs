//! One process of a local run: start, log, exit and restart. [`super::processes`] decides which
//! processes exist and when they stop.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rljob_crds::failure_policy::FailureRole;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use super::backoff::Exits;
use super::commands::ProcessSpec;
use crate::decide::Exit;

/// Shortest delay before a process restarts after exit code 0.
const AFTER_SUCCESS: Duration = Duration::from_secs(2);

/// Error of a process that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program cannot be executed.
    #[error("failed to start {program}; `rljob run` expects it in the same folder as `rljob`")]
    Start { program: PathBuf, source: io::Error },
    /// The log cannot be written, or no port is free.
    #[error("failed to prepare the start of {name}")]
    Prepare { name: String, source: io::Error },
    /// The process keeps exiting.
    #[error(
        "{name} exited {exits_in_a_row} times in a row, the last time with {status}: {line}; \
         see {log}"
    )]
    CrashLoop { name: String, exits_in_a_row: u32, status: String, line: String, log: PathBuf },
}

/// A process, running or waiting to start.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) spec: ProcessSpec,
    pub(super) log: PathBuf,
    /// `Some` while it runs.
    pub(super) child: Option<Child>,
    /// Pipe to `rljob with-parent`, which kills its program and all descendants when the pipe
    /// closes.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) port: Option<u16>,
    pub(super) starts: u32,
    /// Time of the start, or of the exit while the process does not run.
    since: Instant,
    /// Time from an exit to the next start.
    delay: Duration,
    exits_in_a_row: Exits,
    /// Newest failure.
    pub(super) exit: Option<Exit>,
}

impl Process {
    pub(super) fn new(spec: ProcessSpec, log: PathBuf) -> Self {
        let (exits_in_a_row, since) = (Exits::default(), Instant::now());
        Self {
            spec,
            log,
            child: None,
            stdin: None,
            port: None,
            starts: 0,
            since,
            delay: Duration::ZERO,
            exits_in_a_row,
            exit: None,
        }
    }

    pub(super) fn start(&mut self, programs: &Path, now: Instant) -> Result<(), ProcessError> {
        let prepare = |source| ProcessError::Prepare { name: self.spec.name.clone(), source };
        let log = self.open_log().map_err(prepare)?;
        let errors = log.try_clone().map_err(prepare)?;
        let program = programs.join(self.spec.program);
        let mut command = Command::new(&program);
        command
            .args(&self.spec.arguments)
            .envs(self.spec.environment.iter().map(|(name, value)| (name, value)))
            .stdin(if self.spec.exits_with_stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true);
        if !self.spec.exits_with_stdin {
            command.arg("--exit-with-parent").arg(std::process::id().to_string());
        }
        if self.spec.takes_port {
            let port = free_port().map_err(prepare)?;
            command.arg("--port").arg(port.to_string());
            self.port = Some(port);
        }
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        let mut child =
            command.spawn().map_err(|source| ProcessError::Start { program, source })?;
        self.stdin = child.stdin.take();
        self.child = Some(child);
        self.starts = self.starts.saturating_add(1);
        self.since = now;
        Ok(())
    }

    /// Sends a signal to the process group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(Err(error)) = self.group().map(|group| kill_process_group(group, signal)) {
            tracing::warn!(name = self.spec.name, %error, "failed to signal a process");
        }
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.child.as_ref()?.id()? as i32)
    }

    fn open_log(&self) -> io::Result<File> {
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        // On a full disk the line is lost, as are those of the process.
        let _ = writeln!(log, "--- {} started at {}", self.spec.name, jiff::Timestamp::now());
        Ok(log)
    }

    /// Whether the process must start.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.child.is_none() && now.duration_since(self.since) >= self.delay
    }

    /// Exit status and uptime, if the process exited.
    pub(super) fn reap(
        &mut self,
        now: Instant,
    ) -> Result<Option<(ExitStatus, Duration)>, ProcessError> {
        let group = self.group();
        let status = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => status,
            Some(Err(source)) => {
                return Err(ProcessError::Prepare { name: self.spec.name.clone(), source });
            }
            Some(Ok(None)) | None => return Ok(None),
        };
        self.child = None;
        let uptime = now.duration_since(self.since);
        self.since = now;
        // Remaining processes of the group.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        Ok(Some((status, uptime)))
    }

    /// The exit, in the form that kubelet reports.
    fn failure(&self, status: ExitStatus) -> Exit {
        let role = FailureRole::from(self.spec.role);
        let (name, reason) = (self.spec.name.clone(), "Error".to_owned());
        Exit { role, name, reason, exit_code: exit_code(status), message: last_line(&self.log) }
    }

    /// Schedules the restart. Returns a line to print unless the exit code was 0.
    pub(super) fn record_exit(
        &mut self,
        status: ExitStatus,
        uptime: Duration,
    ) -> Result<Option<String>, ProcessError> {
        let name = &self.spec.name;
        let Some(wait) = self.exits_in_a_row.count(uptime) else {
            let log = self.log.clone();
            return Err(ProcessError::CrashLoop {
                name: name.clone(),
                exits_in_a_row: super::backoff::MAX_EXITS,
                status: describe(status),
                line: last_line(&log),
                log,
            });
        };
        if status.success() {
            // Supervisors exit with 0 at the end of the run; if the run continues, they restart.
            self.delay = wait.max(AFTER_SUCCESS);
            return Ok(None);
        }
        self.delay = wait;
        self.exit = Some(self.failure(status));
        Ok(Some(format!(
            "{name} exited with {}; restarting in {:.1} s (log: {})",
            describe(status),
            wait.as_secs_f64(),
            self.log.display()
        )))
    }
}

/// Exit code; 128 + n for signal n.
fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128_i32.saturating_add(signal)))
        .unwrap_or_default()
}

/// Last non-empty line of a log, at most 16 KiB of it; empty if the log cannot be read.
pub(super) fn last_line(log: &Path) -> String {
    let text = read_end(log, 16 << 10).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .to_owned()
}

/// The last `limit` bytes of a file.
fn read_end(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(limit)))?;
    let mut end = Vec::new();
    file.take(limit).read_to_end(&mut end)?;
    Ok(end)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// An unused port. Another process may take it before it is bound.
///
/// # Errors
/// No port is free.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
