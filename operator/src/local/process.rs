//! One process of a local run: its start, its log, and how it ended. Which processes there are, and
//! when they stop, is for [`super::processes`] to say.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rljob_crds::failure_policy::FailureRole;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use super::backoff::Losses;
use super::commands::{Recipe, Role};
use crate::decide::Exit;

/// Wait before a process that ended with exit code 0 is started again.
const AFTER_SUCCESS: Duration = Duration::from_secs(2);

/// A process that cannot be kept running.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program does not start.
    #[error("failed to start {program}; `rljob run` looks for it beside its own program file")]
    Start {
        /// The program's path.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Its log cannot be written, or there is no free port.
    #[error("failed to prepare the start of {name}")]
    Prepare {
        /// The process.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// It ends again and again.
    #[error("{name} ended {losses} times in a row, the last time with {status}; see {log}")]
    Lost {
        /// The process.
        name: String,
        /// How often.
        losses: u32,
        /// How it ended.
        status: String,
        /// Its log.
        log: PathBuf,
    },
}

/// One process, running or about to be started.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) recipe: Recipe,
    pub(super) log: PathBuf,
    /// While it runs.
    pub(super) child: Option<Child>,
    /// Its program ends with all that it started when this is closed.
    pub(super) lifeline: Option<ChildStdin>,
    pub(super) port: Option<u16>,
    pub(super) starts: u32,
    /// When it was started, or is to be started.
    pub(super) since: Instant,
    losses: Losses,
    /// Its newest failure.
    pub(super) exit: Option<Exit>,
}

impl Process {
    /// One that is to be started now.
    pub(super) fn new(recipe: Recipe, log: PathBuf) -> Self {
        let (losses, since) = (Losses::default(), Instant::now());
        Self {
            recipe,
            log,
            child: None,
            lifeline: None,
            port: None,
            starts: 0,
            since,
            losses,
            exit: None,
        }
    }

    pub(super) fn start(&mut self, programs: &Path, now: Instant) -> Result<(), ProcessError> {
        let prepare = |source| ProcessError::Prepare { name: self.recipe.name.clone(), source };
        let log = self.open_log().map_err(prepare)?;
        let errors = log.try_clone().map_err(prepare)?;
        let program = programs.join(self.recipe.program);
        let mut command = Command::new(&program);
        command
            .args(&self.recipe.arguments)
            .envs(self.recipe.environment.iter().map(|(name, value)| (name, value)))
            .stdin(if self.recipe.holds_lifeline { Stdio::piped() } else { Stdio::null() })
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true);
        if !self.recipe.holds_lifeline {
            command.arg("--exit-with-parent").arg(std::process::id().to_string());
        }
        if self.recipe.takes_port {
            let port = free_port().map_err(prepare)?;
            command.arg("--port").arg(port.to_string());
            self.port = Some(port);
        }
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        let mut child =
            command.spawn().map_err(|source| ProcessError::Start { program, source })?;
        self.lifeline = child.stdin.take();
        self.child = Some(child);
        self.starts += 1;
        self.since = now;
        Ok(())
    }

    /// Sends a signal to it and to what it started in its group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(Err(error)) = self.group().map(|group| kill_process_group(group, signal)) {
            tracing::warn!(name = self.recipe.name, %error, "failed to signal a process");
        }
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.child.as_ref()?.id()? as i32)
    }

    fn open_log(&self) -> io::Result<File> {
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(log, "--- {} is started at {}", self.recipe.name, jiff::Timestamp::now())?;
        Ok(log)
    }

    /// How the process ended, and how long it lived.
    pub(super) fn reap(
        &mut self,
        now: Instant,
    ) -> Result<Option<(ExitStatus, Duration)>, ProcessError> {
        let group = self.group();
        let status = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => status,
            Some(Err(source)) => {
                return Err(ProcessError::Prepare { name: self.recipe.name.clone(), source });
            }
            Some(Ok(None)) | None => return Ok(None),
        };
        self.child = None;
        // What it left behind in its group; mostly nothing.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        Ok(Some((status, now - self.since)))
    }

    /// As kubelet would report it.
    fn failure(&self, status: ExitStatus) -> Exit {
        let role = match self.recipe.role {
            Role::Coordinator => FailureRole::Coordinator,
            Role::Inference => FailureRole::Inference,
            Role::Trainer => FailureRole::Trainer,
        };
        let (name, reason) = (self.recipe.name.clone(), "Error".to_owned());
        Exit { role, name, reason, exit_code: exit_code(status), message: last_line(&self.log) }
    }

    /// Says when the process is started again; a line for a person, unless it ended as it was told.
    pub(super) fn lost(
        &mut self,
        status: ExitStatus,
        lived: Duration,
        now: Instant,
    ) -> Result<Option<String>, ProcessError> {
        let name = &self.recipe.name;
        let Some(wait) = self.losses.count(lived) else {
            let log = self.log.clone();
            return Err(ProcessError::Lost {
                name: name.clone(),
                losses: super::backoff::MAX_LOSSES,
                status: describe(status),
                log,
            });
        };
        if status.success() {
            // It obeyed an order (a supervisor's at the end): unless the run ends now, it is wanted
            // again.
            self.since = now + wait.max(AFTER_SUCCESS);
            return Ok(None);
        }
        self.since = now + wait;
        self.exit = Some(self.failure(status));
        Ok(Some(format!(
            "{name} ended with {}; it is started again in {:.1} s (log: {})",
            describe(status),
            wait.as_secs_f64(),
            self.log.display()
        )))
    }
}

/// 128 + n for signal n.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or_default()
}

/// The last line of a log that is not empty; what cannot be read has none.
pub(super) fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .to_owned()
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A port that was free a moment ago.
///
/// # Errors
/// None is free.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
