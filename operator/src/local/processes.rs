//! The processes of a local run: started, watched, started again after a loss, and stopped. Decides
//! nothing about the job.
//!
//! Each is in a process group of its own, so that Ctrl-C in a terminal reaches only `rljob run`,
//! and each ends with this process, however it ends: rljob's own by `--exit-with-parent`, which
//! follows the thread that started the process (call [`Processes::tend`] from the main thread
//! only); a program of the user's by its lifeline, the pipe that `rljob with-parent` reads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_crds::names::EXIT_RUN_DIRECTORY_IN_USE;
use rljob_protocol::desired::EngineEndpoint;
use rustix::process::Signal;
use tokio::process::Child;
use tokio::time::Instant;

use super::commands::{Recipe, Role};
use super::process::{Process, ProcessError, last_line};
use super::watchdog::Watched;
use crate::decide::{Exit, RoleCounts};

/// How long a program of the user's may take to be killed with all that it started.
const LIFELINE_PATIENCE: Duration = Duration::from_secs(2);

/// All processes of a run.
#[derive(Debug)]
pub struct Processes {
    programs: PathBuf,
    all: Vec<Process>,
    directory_in_use: Option<String>,
}

impl Processes {
    /// Nothing is started before [`Self::tend`]. `programs` is the folder of the programs, `log`
    /// gives the log of a process.
    pub fn new(programs: &Path, recipes: Vec<Recipe>, log: impl Fn(&str) -> PathBuf) -> Self {
        let process = |recipe: Recipe| {
            let log = log(&recipe.name);
            Process::new(recipe, log)
        };
        Self {
            programs: programs.to_owned(),
            all: recipes.into_iter().map(process).collect(),
            directory_in_use: None,
        }
    }

    /// Starts what is due and takes note of what has ended; returns one line for each loss.
    ///
    /// # Errors
    /// [`ProcessError`]: the run cannot go on.
    pub fn tend(&mut self, now: Instant) -> Result<Vec<String>, ProcessError> {
        let mut lines = Vec::new();
        for process in &mut self.all {
            if let Some((status, lived)) = process.reap(now)? {
                if process.recipe.role == Role::Coordinator
                    && status.code() == Some(EXIT_RUN_DIRECTORY_IN_USE)
                {
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

    /// Identity of the coordinator that runs, if one does: it differs from that of every other
    /// start.
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
        running
            .map(|process| {
                (
                    Watched { name: process.recipe.name.clone(), starts: process.starts },
                    process.recipe.role,
                )
            })
            .collect()
    }

    /// Kills a process that hangs; [`Self::tend`] starts it again. Its children end with it.
    pub fn kill_hung(&mut self, name: &str) {
        let Some(process) = self.all.iter_mut().find(|process| process.recipe.name == name) else {
            return;
        };
        process.lifeline = None;
        let killed = process
            .child
            .as_mut()
            .filter(|_| !process.recipe.holds_lifeline)
            .map(Child::start_kill);
        if let Some(Err(error)) = killed {
            tracing::warn!(name, %error, "failed to kill a process that hangs");
        }
    }

    /// What the coordinator said last, if it ended because the run directory belongs to another
    /// run.
    pub fn directory_in_use(&self) -> Option<String> {
        self.directory_in_use.clone()
    }

    /// Engines that run.
    pub fn engines(&self) -> Vec<EngineEndpoint> {
        let running = self
            .all
            .iter()
            .filter(|process| process.recipe.role == Role::Inference && process.child.is_some());
        running
            .filter_map(|process| {
                Some(EngineEndpoint {
                    name: process.recipe.name.clone(),
                    url: format!("http://127.0.0.1:{}", process.port?),
                })
            })
            .collect()
    }

    /// Processes of a role.
    pub fn counts(&self, role: Role) -> RoleCounts {
        let of_role = || self.all.iter().filter(|process| process.recipe.role == role);
        let running = of_role().filter(|process| process.child.is_some()).count() as i32;
        RoleCounts { wanted: of_role().count() as i32, existing: running, ready: running }
    }

    /// Waits until every trainer has ended by itself, at most for `patience`: a supervisor does
    /// when the coordinator orders it.
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
        self.wait(Instant::now() + LIFELINE_PATIENCE, |process| process.recipe.holds_lifeline)
            .await;
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
        self.all.iter().for_each(|process| process.signal(signal));
    }
}
