//! Session of one job: the controller's loop, with local processes as facts.
//!
//! ```text
//!   poll processes ─▶ record epoch ─▶ GET status ─▶ facts ─▶ decide ─▶ PUT desired
//!       ▲                                                      │
//!       └───────────── every 200 ms ◀──────────────────────────┴──▶ Release, Finish: ends
//! ```
//!
//! [`decide`] and [`desired_for_coordinator`] are shared with the controller; this file contains
//! only IO.

mod console;

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use rljob_crds::EnginePurpose;
use rljob_http::StopSignals;
use rljob_protocol::desired::Desired;
use rljob_protocol::status::{CoordinatorStatus, Phase};
use tokio::time::{Instant, MissedTickBehavior};

use self::console::Console;
use super::client::Coordinator;
use super::directory::{DirectoryError, INPUTS_FILE, RunDirectory, State};
use super::processes::Processes;
use super::program_edits::ProgramEdits;
use super::role::Role;
use super::status_file::StatusFile;
use super::watchdog::{self, Watchdog};
use crate::decide::{
    Decision, Epoch, Facts, Recorded, RoleCounts, Roles, assign_epoch, decide,
    desired_for_coordinator,
};
use crate::status::wait;
use crate::validate::ValidatedJob;

/// Interval of passes.
const PERIOD: Duration = Duration::from_millis(200);
/// Time for processes to exit, and again after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// End of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last step is done and the model is exported.
    Succeeded,
    /// The run failed; the cause in one line.
    Failed(String),
    /// Interrupted; all completed steps are in a checkpoint.
    Drained,
    /// Interrupted and stopped before a checkpoint was written. A resumed run repeats the steps
    /// since the last checkpoint from the same batches.
    Stopped,
}

/// Error that aborts a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Standard output or a file of the run directory.
    #[error("failed to show the run's progress")]
    Show(#[from] io::Error),
}

/// A running job.
pub struct Session<'a> {
    job: &'a ValidatedJob,
    directory: &'a RunDirectory,
    processes: Processes,
    coordinator: Coordinator,
    console: Console<'a>,
    status_file: StatusFile,
    recorded: Recorded,
    interrupted: bool,
    sent: Option<Desired>,
    watchdog: Watchdog,
    edits: ProgramEdits,
}

impl<'a> Session<'a> {
    /// Creates a session; [`Self::run`] starts its processes. Records that are already in the run
    /// directory are not printed.
    ///
    /// # Errors
    /// The run directory cannot be read.
    pub fn new(
        job: &'a ValidatedJob,
        directory: &'a RunDirectory,
        processes: Processes,
        coordinator: Coordinator,
    ) -> Result<Self, SessionError> {
        let console = Console::new(job, directory)?;
        let epoch = Epoch { number: directory.state()?.epoch, holder: None };
        let recorded = Recorded {
            started: true,
            active_since: Some(Timestamp::now()),
            epoch,
            ..Recorded::default()
        };
        Ok(Self {
            job,
            directory,
            processes,
            coordinator,
            console,
            status_file: StatusFile::new(directory.path()),
            recorded,
            interrupted: false,
            sent: None,
            watchdog: Watchdog::default(),
            edits: ProgramEdits::new(&directory.read(INPUTS_FILE)?.unwrap_or_default()),
        })
    }

    /// Runs the job until it ends or is interrupted twice. All processes have exited when it
    /// returns.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn run(mut self, interrupts: &mut StopSignals) -> Result<Ending, SessionError> {
        let ending = self.run_until_end(interrupts).await;
        self.console.stopping();
        match &ending {
            Ok(Ending::Stopped | Ending::Failed(_)) | Err(_) => self.processes.kill().await,
            Ok(Ending::Succeeded) => {
                self.processes.wait_for_trainers(PATIENCE).await;
                self.processes.stop(PATIENCE).await;
            }
            Ok(Ending::Drained) => self.processes.stop(PATIENCE).await,
        }
        self.console.close();
        ending
    }

    async fn run_until_end(
        &mut self,
        interrupts: &mut StopSignals,
    ) -> Result<Ending, SessionError> {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = interrupts.next() => {
                    if self.interrupted {
                        return Ok(Ending::Stopped);
                    }
                    self.interrupted = true;
                    let seconds = self.job.spec.drain_timeout_seconds;
                    self.console.line(
                        &format!(
                            "finishing the step and writing a checkpoint, at most {seconds} s \
                                (Ctrl-C again stops at once)",
                        ),
                    )?;
                }
                _ = ticks.tick() => {
                    if let Some(ending) = self.pass().await? {
                        return Ok(ending);
                    }
                }
            }
        }
    }

    async fn pass(&mut self) -> Result<Option<Ending>, SessionError> {
        match self.processes.poll(Instant::now()) {
            Ok(failures) => failures.iter().try_for_each(|line| self.console.line(line))?,
            Err(error) => {
                return Ok(Some(Ending::Failed(format!("{:#}", anyhow::Error::new(error)))));
            }
        }
        self.edits.poll(Instant::now()).iter().try_for_each(|line| self.console.line(line))?;
        self.record_epoch()?;
        let facts = self.facts().await;
        self.record_progress(facts.report());
        let ending = self.handle(&facts).await?;
        if let Some(status) = &facts.coordinator {
            match ending {
                Some(_) => self.status_file.write(status, Instant::now()),
                None => self.status_file.update(status, Instant::now()),
            }
        }
        Ok(ending)
    }

    /// Shows and does what the facts demand; the ending if the run has ended.
    async fn handle(&mut self, facts: &Facts) -> Result<Option<Ending>, SessionError> {
        self.console.show_restart(facts)?;
        self.console.show_group_restarts(facts)?;
        self.console.show_progress(facts.report())?;
        self.console.show_reward_failure(facts.report())?;
        self.kill_hung_processes(facts.coordinator.as_ref())?;
        let decision = decide(self.job, facts, Timestamp::now());
        self.console.show_wait(wait(self.job, facts, &decision), self.interrupted)?;
        if decision.keeps_running() {
            self.send_desired(facts).await;
        }
        Ok(match decision {
            Decision::Stall { reason, message } => {
                Some(Ending::Failed(format!("{reason}: {message}")))
            }
            Decision::AskCoordinator | Decision::Start(_) | Decision::Run => None,
            Decision::Drain { deadline } => {
                self.recorded.drain_deadline = Some(deadline);
                None
            }
            Decision::Release | Decision::Suspended | Decision::Queued { .. } => {
                Some(released(facts))
            }
            Decision::Finish(outcome)
            | Decision::Finished(outcome)
            | Decision::Expired(outcome)
                if outcome.succeeded =>
            {
                Some(Ending::Succeeded)
            }
            Decision::Finish(outcome)
            | Decision::Finished(outcome)
            | Decision::Expired(outcome) => {
                Some(Ending::Failed(self.console.cause(&outcome.message, facts)))
            }
        })
    }

    /// Kills hung processes. They restart like other exited processes.
    fn kill_hung_processes(&mut self, status: Option<&CoordinatorStatus>) -> io::Result<()> {
        for name in self.watchdog.hung(&self.processes.running(), status, Instant::now()) {
            self.console.line(&format!(
                "{name} was unresponsive for {} s and was killed",
                watchdog::PATIENCE.as_secs()
            ))?;
            self.processes.kill_hung(&name);
        }
        Ok(())
    }

    /// Writes the epoch of a new coordinator to disk before the coordinator receives it.
    fn record_epoch(&mut self) -> Result<(), DirectoryError> {
        let epoch =
            assign_epoch(&self.recorded.epoch, self.processes.coordinator().as_deref(), None);
        if epoch != self.recorded.epoch {
            self.directory.record(&State { epoch: epoch.number, ..self.directory.state()? })?;
            self.recorded.epoch = epoch;
        }
        Ok(())
    }

    /// Records the time of the newest completed step.
    fn record_progress(&mut self, status: Option<&CoordinatorStatus>) {
        let Some(step) = status.map(|status| status.step) else { return };
        if self.recorded.progress.is_none_or(|(recorded, _)| recorded != step) {
            self.recorded.progress = Some((step, Timestamp::now()));
        }
    }

    async fn facts(&self) -> Facts {
        let identity = self.processes.coordinator();
        let status = match &identity {
            Some(_) => self.coordinator.status().await.map(Some),
            None => Ok(None),
        };
        let unsupported = status
            .as_ref()
            .is_err_and(|error| rljob_http::is_plain_server(error))
            .then(|| crate::poll::PLAIN_COORDINATOR.to_owned());
        let status = status
            .inspect_err(|error| tracing::debug!(%error, "failed to get the coordinator's status"))
            .ok()
            .flatten();
        Facts {
            suspend: self.interrupted,
            queue: None,
            generation: if self.interrupted { 2 } else { 1 },
            recorded: self.recorded.clone(),
            epoch: self.recorded.epoch.clone(),
            coordinator: status,
            coordinator_identity: identity,
            coordinator_unasked: false,
            // Local coordinators that hang are killed by the watchdog.
            silence: None,
            directory_in_use: self.processes.directory_in_use(),
            waiting: Vec::new(),
            incidents: Vec::new(),
            exit: None,
            exits: self.processes.exits(),
            exits_under_rules: self.processes.exits(),
            rules_digest: None,
            unsupported,
            obstacle: None,
            engine_up_since: None,
            engines: self.processes.engines(EnginePurpose::Rollouts),
            evaluation_engines: self.processes.engines(EnginePurpose::Evaluation),
            reward_engines: self.processes.engines(EnginePurpose::Reward),
            teacher_engines: self.processes.engines(EnginePurpose::Teacher),
            verifiers: vec![],
            supervisors: vec![],
            roles: Roles {
                inference: self.processes.counts(Role::Engine(EnginePurpose::Rollouts)),
                evaluation: self.processes.counts(Role::Engine(EnginePurpose::Evaluation)),
                reward: self.processes.counts(Role::Engine(EnginePurpose::Reward)),
                teacher: self.processes.counts(Role::Engine(EnginePurpose::Teacher)),
                coordinator: self.processes.counts(Role::Coordinator),
                trainer: self.processes.counts(Role::Trainer),
                group: self.processes.counts(Role::Group),
                verifier: RoleCounts::default(),
            },
        }
    }

    /// Sends the desired state, unless the coordinator acknowledged the same one.
    async fn send_desired(&mut self, facts: &Facts) {
        let Some(desired) = desired_for_coordinator(self.job, facts) else { return };
        let echoed = facts.coordinator.as_ref().is_some_and(|status| {
            status.epoch == Some(desired.epoch) && status.generation == Some(desired.generation)
        });
        if echoed && self.sent.as_ref() == Some(&desired) {
            return;
        }
        match self.coordinator.put_desired(&desired).await {
            Ok(()) => self.sent = Some(desired),
            Err(error) => tracing::debug!(%error, "failed to send the desired state"),
        }
    }
}

fn released(facts: &Facts) -> Ending {
    let is_saved =
        |report: &&CoordinatorStatus| report.phase == Phase::Drained && report.checkpoint.is_some();
    if facts.report().as_ref().is_some_and(is_saved) { Ending::Drained } else { Ending::Stopped }
}
