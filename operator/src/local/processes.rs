//! Processes of a local run: starts them, restarts exited ones, and stops all. Makes no decision
//! about the job.
//!
//! Each process has its own process group, so that Ctrl-C reaches only `rljob run`. All processes
//! exit with this one, even after SIGKILL: the programs of rljob by `--exit-with-parent`, which
//! follows the starting thread (call [`Processes::poll`] on the main thread only), and user
//! programs through `rljob with-parent`, whose standard input is a pipe from this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_crds::EnginePurpose;
use rljob_crds::names::EXIT_RUN_DIRECTORY_IN_USE;
use rljob_protocol::desired::EngineEndpoint;
use rustix::process::Signal;
use tokio::process::Child;
use tokio::time::Instant;

use super::commands::ProcessSpec;
use super::process::{Process, ProcessError, last_line};
use super::role::Role;
use super::watchdog::Instance;
use crate::decide::{Exit, RoleCounts};

/// Time for `rljob with-parent` to kill its program and all descendants.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// All processes of a run.
#[derive(Debug)]
pub struct Processes {
    programs: PathBuf,
    all: Vec<Process>,
    directory_in_use: Option<String>,
}

impl Processes {
    /// Creates the processes without starting them. `programs` is the folder of the programs; `log`
    /// returns the log path of a process.
    pub fn new(
        programs: &Path,
        process_specs: Vec<ProcessSpec>,
        log: impl Fn(&str) -> PathBuf,
    ) -> Self {
        let process = |spec: ProcessSpec| {
            let log = log(&spec.name);
            Process::new(spec, log)
        };
        Self {
            programs: programs.to_owned(),
            all: process_specs.into_iter().map(process).collect(),
            directory_in_use: None,
        }
    }

    /// Starts processes that are due and reaps exited ones. Returns one line for each failure.
    ///
    /// # Errors
    /// [`ProcessError`]: the run cannot continue.
    pub fn poll(&mut self, now: Instant) -> Result<Vec<String>, ProcessError> {
        let mut lines = Vec::new();
        for process in &mut self.all {
            if let Some((status, uptime)) = process.reap(now)? {
                if process.spec.role == Role::Coordinator
                    && status.code() == Some(EXIT_RUN_DIRECTORY_IN_USE)
                {
                    self.directory_in_use = Some(last_line(&process.log));
                }
                lines.extend(process.record_exit(status, uptime)?);
            }
            if process.is_due(now) {
                process.start(&self.programs, now)?;
            }
        }
        Ok(lines)
    }

    /// Identity of the running coordinator; differs for every start.
    pub fn coordinator(&self) -> Option<String> {
        let process = self.all.iter().find(|process| process.spec.role == Role::Coordinator)?;
        Some(format!("{}-{}", process.child.as_ref()?.id()?, process.starts))
    }

    /// Newest failure of each process.
    pub fn exits(&self) -> Vec<Exit> {
        self.all.iter().filter_map(|process| process.exit.clone()).collect()
    }

    /// Running processes.
    pub fn running(&self) -> Vec<(Instance, Role)> {
        let running = self.all.iter().filter(|process| process.child.is_some());
        running
            .map(|process| {
                (
                    Instance { name: process.spec.name.clone(), starts: process.starts },
                    process.spec.role,
                )
            })
            .collect()
    }

    /// Kills a hung process and its children; [`Self::poll`] restarts it.
    pub fn kill_hung(&mut self, name: &str) {
        let Some(process) = self.all.iter_mut().find(|process| process.spec.name == name) else {
            return;
        };
        process.stdin = None;
        let killed = process
            .child
            .as_mut()
            .filter(|_| !process.spec.exits_with_stdin)
            .map(Child::start_kill);
        if let Some(Err(error)) = killed {
            tracing::warn!(name, %error, "failed to kill a hung process");
        }
    }

    /// Last log line of a coordinator that exited because the run directory belongs to another run.
    pub fn directory_in_use(&self) -> Option<String> {
        self.directory_in_use.clone()
    }

    /// Endpoints of running engines.
    pub fn engines(&self, purpose: EnginePurpose) -> Vec<EngineEndpoint> {
        let role = Role::Engine(purpose);
        let running =
            self.all.iter().filter(|process| process.spec.role == role && process.child.is_some());
        running
            .filter_map(|process| {
                Some(EngineEndpoint {
                    name: process.spec.name.clone(),
                    url: format!("https://127.0.0.1:{}", process.port?),
                    uid: None,
                })
            })
            .collect()
    }

    /// Process counts of a role.
    pub fn counts(&self, role: Role) -> RoleCounts {
        let of_role = || self.all.iter().filter(|process| process.spec.role == role);
        let running = of_role().filter(|process| process.child.is_some()).count() as i32;
        RoleCounts { wanted: of_role().count() as i32, existing: running, ready: running }
    }

    /// Waits up to `timeout` for the supervisors to exit at the coordinator's instruction.
    pub async fn wait_for_trainers(&mut self, timeout: Duration) {
        let is_trainer =
            |process: &Process| matches!(process.spec.role, Role::Trainer | Role::Group);
        self.wait(timeout, is_trainer).await;
    }

    /// Sends SIGTERM to all processes, and SIGKILL after `timeout`.
    pub async fn stop(mut self, timeout: Duration) {
        self.signal(Signal::TERM);
        self.wait(timeout, |_| true).await;
        self.kill().await;
    }

    /// Kills all processes immediately.
    pub async fn kill(mut self) {
        self.all.iter_mut().for_each(|process| process.stdin = None);
        self.wait(KILL_TIMEOUT, |process| process.spec.exits_with_stdin).await;
        self.signal(Signal::KILL);
        for child in self.all.iter_mut().filter_map(|process| process.child.as_mut()) {
            if let Err(error) = child.wait().await {
                tracing::warn!(%error, "failed to wait for a killed process");
            }
        }
    }

    async fn wait(&mut self, timeout: Duration, selected: impl Fn(&Process) -> bool) {
        let start = Instant::now();
        for process in self.all.iter_mut().filter(|process| selected(process)) {
            let Some(child) = &mut process.child else { continue };
            let left = timeout.saturating_sub(start.elapsed());
            if tokio::time::timeout(left, child.wait()).await.is_ok() {
                process.child = None;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        self.all.iter().for_each(|process| process.signal(signal));
    }
}
