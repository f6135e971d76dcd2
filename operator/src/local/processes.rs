//! The processes of a local run: started, watched, started again after a loss, and stopped. Decides nothing about the job.
//!
//! Each is in a process group of its own, so that Ctrl-C in a terminal reaches only `rljob run`, and each ends with this process, however it ends:
//! rljob's own by `--exit-with-parent`, which follows the thread that started the process (call [`Processes::tend`] from the main thread only); a program of the
//! user's by its lifeline, the pipe that `rljob with-parent` reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rljob_crds::failure_policy::FailureRole;
use rljob_crds::names::EXIT_RUN_DIRECTORY_IN_USE;
use rljob_protocol::desired::EngineEndpoint;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use super::backoff::Losses;
use super::commands::{Recipe, Role};
use super::watchdog::Watched;
use crate::decide::{Exit, RoleCounts};

/// Wait before a process that ended with exit code 0 is started again.
const AFTER_SUCCESS: Duration = Duration::from_secs(2);
/// How long a program of the user's may take to be killed with all that it started.
const LIFELINE_PATIENCE: Duration = Duration::from_secs(2);

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
struct Process {
    recipe: Recipe,
    log: PathBuf,
    child: Option<Child>,
    lifeline: Option<ChildStdin>,
    port: Option<u16>,
    starts: u32,
    /// When it was started, or is to be started.
    since: Instant,
    losses: Losses,
    exit: Option<Exit>,
}

/// All processes of a run.
#[derive(Debug)]
pub struct Processes {
    programs: PathBuf,
    all: Vec<Process>,
    directory_in_use: Option<String>,
}

impl Processes {
    /// Nothing is started before [`Self::tend`]. `programs` is the folder of the programs, `log` gives the log of a process.
    pub fn new(programs: &Path, recipes: Vec<Recipe>, log: impl Fn(&str) -> PathBuf) -> Self {
        let process = |recipe: Recipe| Process {
            log: log(&recipe.name),
            recipe,
            child: None,
            lifeline: None,
            port: None,
            starts: 0,
            since: Instant::now(),
            losses: Losses::default(),
            exit: None,
        };
        Self { programs: programs.to_owned(), all: recipes.into_iter().map(process).collect(), directory_in_use: None }
    }

    /// Starts what is due and takes note of what has ended; returns one line for each loss.
    ///
    /// # Errors
    /// [`ProcessError`]: the run cannot go on.
    pub fn tend(&mut self, now: Instant) -> Result<Vec<String>, ProcessError> {
        let mut lines = Vec::new();
        for process in &mut self.all {
            if let Some((status, lived)) = process.reap(now)? {
                if process.recipe.role == Role::Coordinator && status.code() == Some(EXIT_RUN_DIRECTORY_IN_USE) {
                    self.directory_in_use = Some(last_line(&process.log));
                }
                lines.extend(process.lost(status, lived, now)?);
            }
            if process.child.is_none() && now >= process.since {
                process.start(&self.programs, now)?;
            }
        }
        Ok(lines)
    }

    /// Identity of the coordinator that runs, if one does: it differs from that of every other start.
    pub fn coordinator(&self) -> Option<String> {
        let process = self.all.iter().find(|process| process.recipe.role == Role::Coordinator)?;
        Some(format!("{}-{}", process.child.as_ref()?.id()?, process.starts))
    }

    /// The newest failure of each process that failed.
    pub fn exits(&self) -> Vec<Exit> {
        self.all.iter().filter_map(|process| process.exit.clone()).collect()
    }

    /// Every process that runs.
    pub fn running(&self) -> Vec<(Watched, Role)> {
        let running = self.all.iter().filter(|process| process.child.is_some());
        running.map(|process| (Watched { name: process.recipe.name.clone(), starts: process.starts }, process.recipe.role)).collect()
    }

    /// Kills a process that hangs; [`Self::tend`] starts it again. Its children end with it.
    pub fn kill_hung(&mut self, name: &str) {
        let Some(process) = self.all.iter_mut().find(|process| process.recipe.name == name) else { return };
        process.lifeline = None;
        let killed = process.child.as_mut().filter(|_| !process.recipe.holds_lifeline).map(Child::start_kill);
        if let Some(Err(error)) = killed {
            tracing::warn!(name, %error, "failed to kill a process that hangs");
        }
    }

    /// What the coordinator said last, if it ended because the run directory belongs to another run.
    pub fn directory_in_use(&self) -> Option<String> {
        self.directory_in_use.clone()
    }

    /// Engines that run.
    pub fn engines(&self) -> Vec<EngineEndpoint> {
        let running = self.all.iter().filter(|process| process.recipe.role == Role::Inference && process.child.is_some());
        running.filter_map(|process| Some(EngineEndpoint { name: process.recipe.name.clone(), url: format!("http://127.0.0.1:{}", process.port?) })).collect()
    }

    /// Processes of a role.
    pub fn counts(&self, role: Role) -> RoleCounts {
        let of_role = || self.all.iter().filter(|process| process.recipe.role == role);
        let running = of_role().filter(|process| process.child.is_some()).count() as i32;
        RoleCounts { wanted: of_role().count() as i32, existing: running, ready: running }
    }

    /// Waits until every trainer has ended by itself, at most for `patience`: a supervisor does when the coordinator orders it.
    pub async fn wait_for_trainers(&mut self, patience: Duration) {
        self.wait(Instant::now() + patience, |process| process.recipe.role == Role::Trainer).await;
    }

    /// Asks every process to end, and kills those that have not after `patience`.
    pub async fn stop(mut self, patience: Duration) {
        self.signal(Signal::TERM);
        self.wait(Instant::now() + patience, |_| true).await;
        self.kill().await;
    }

    /// Kills every process at once.
    pub async fn kill(mut self) {
        self.all.iter_mut().for_each(|process| process.lifeline = None);
        self.wait(Instant::now() + LIFELINE_PATIENCE, |process| process.recipe.holds_lifeline).await;
        self.signal(Signal::KILL);
        for child in self.all.iter_mut().filter_map(|process| process.child.as_mut()) {
            if let Err(error) = child.wait().await {
                tracing::warn!(%error, "failed to wait for a killed process");
            }
        }
    }

    async fn wait(&mut self, deadline: Instant, selected: impl Fn(&Process) -> bool) {
        for process in self.all.iter_mut().filter(|process| selected(process)) {
            let Some(child) = &mut process.child else { continue };
            if tokio::time::timeout_at(deadline, child.wait()).await.is_ok() {
                process.child = None;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        for process in &self.all {
            let Some(pid) = process.child.as_ref().and_then(Child::id).and_then(|pid| Pid::from_raw(pid as i32)) else { continue };
            if let Err(error) = kill_process_group(pid, signal) {
                tracing::warn!(name = process.recipe.name, %error, "failed to signal a process");
            }
        }
    }
}

impl Process {
    fn start(&mut self, programs: &Path, now: Instant) -> Result<(), ProcessError> {
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
        let mut child = command.spawn().map_err(|source| ProcessError::Start { program, source })?;
        self.lifeline = child.stdin.take();
        self.child = Some(child);
        self.starts += 1;
        self.since = now;
        Ok(())
    }

    fn open_log(&self) -> io::Result<File> {
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(log, "--- {} is started at {}", self.recipe.name, jiff::Timestamp::now())?;
        Ok(log)
    }

    /// How the process ended, and how long it lived.
    fn reap(&mut self, now: Instant) -> Result<Option<(ExitStatus, Duration)>, ProcessError> {
        let group = self.child.as_ref().and_then(Child::id).and_then(|pid| Pid::from_raw(pid as i32));
        let status = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => status,
            Some(Err(source)) => return Err(ProcessError::Prepare { name: self.recipe.name.clone(), source }),
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
    fn lost(&mut self, status: ExitStatus, lived: Duration, now: Instant) -> Result<Option<String>, ProcessError> {
        let name = &self.recipe.name;
        let Some(wait) = self.losses.count(lived) else {
            let log = self.log.clone();
            return Err(ProcessError::Lost { name: name.clone(), losses: super::backoff::MAX_LOSSES, status: describe(status), log });
        };
        if status.success() {
            // It obeyed an order (a supervisor's at the end): unless the run ends now, it is wanted again.
            self.since = now + wait.max(AFTER_SUCCESS);
            return Ok(None);
        }
        self.since = now + wait;
        self.exit = Some(self.failure(status));
        Ok(Some(format!("{name} ended with {}; it is started again in {:.1} s (log: {})", describe(status), wait.as_secs_f64(), self.log.display())))
    }
}

/// 128 + n for signal n.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or_default()
}

/// The last line of a log that is not empty; what cannot be read has none.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim_start_matches("error: ").to_owned()
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
