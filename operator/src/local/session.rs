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

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use rljob_crds::EnginePurpose;
use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE};
use rljob_dashboard::records::Tail;
use rljob_http::StopSignals;
use rljob_protocol::desired::Desired;
use rljob_protocol::status::{
    CoordinatorStatus, EvaluationMetrics, LearnerFailure, Phase, StepMetrics,
};
use tokio::time::{Instant, MissedTickBehavior};

use super::client::Coordinator;
use super::directory::{DirectoryError, RunDirectory, State};
use super::lines;
use super::processes::Processes;
use super::results;
use super::role::Role;
use super::screen::Screen;
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
    screen: Screen,
    status_file: StatusFile,
    metrics: Tail,
    evaluations: Tail,
    recorded: Recorded,
    interrupted: bool,
    sent: Option<Desired>,
    watchdog: Watchdog,
    /// Number of the learner group in the newest report.
    attempt: Option<u32>,
    /// Failure in the newest report.
    failure: Option<LearnerFailure>,
    /// Number of each group of `trainer.groups` in the newest report.
    groups: BTreeMap<String, u32>,
    /// Reason of the wait that was printed.
    wait: Option<String>,
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
        let mut metrics = Tail::new(directory.path().join(METRICS_FILE));
        let mut evaluations = Tail::new(directory.path().join(EVALUATIONS_FILE));
        let mut done = 0;
        metrics.each(|step: StepMetrics| {
            done = step.step;
            Ok(())
        })?;
        evaluations.each(|_: EvaluationMetrics| Ok(()))?;
        let screen = Screen::new(&job.name, job.spec.training.steps);
        screen.resume_at(done);
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
            screen,
            status_file: StatusFile::new(directory.path()),
            metrics,
            evaluations,
            recorded,
            interrupted: false,
            sent: None,
            watchdog: Watchdog::default(),
            attempt: None,
            failure: None,
            groups: BTreeMap::new(),
            wait: None,
        })
    }

    /// Runs the job until it ends or is interrupted twice. All processes have exited when it
    /// returns.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn run(mut self, interrupts: &mut StopSignals) -> Result<Ending, SessionError> {
        let ending = self.run_until_end(interrupts).await;
        self.screen.progress(self.screen.position(), "stopping");
        match &ending {
            Ok(Ending::Stopped | Ending::Failed(_)) | Err(_) => self.processes.kill().await,
            Ok(Ending::Succeeded) => {
                self.processes.wait_for_trainers(PATIENCE).await;
                self.processes.stop(PATIENCE).await;
            }
            Ok(Ending::Drained) => self.processes.stop(PATIENCE).await,
        }
        self.screen.close();
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
                    self.screen.line(
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
            Ok(failures) => failures.iter().try_for_each(|line| self.screen.line(line))?,
            Err(error) => {
                return Ok(Some(Ending::Failed(format!("{:#}", anyhow::Error::new(error)))));
            }
        }
        self.record_epoch()?;
        let facts = self.facts().await;
        self.record_progress(facts.coordinator.as_ref());
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
        self.show_restart(facts)?;
        self.show_group_restarts(facts)?;
        self.show_progress(facts.coordinator.as_ref())?;
        self.kill_hung_processes(facts.coordinator.as_ref())?;
        let decision = decide(self.job, facts, Timestamp::now());
        self.show_wait(wait(self.job, facts, &decision))?;
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
                Some(Ending::Failed(self.cause(&outcome.message, facts)))
            }
        })
    }

    /// Kills hung processes. They restart like other exited processes.
    fn kill_hung_processes(&mut self, status: Option<&CoordinatorStatus>) -> io::Result<()> {
        for name in self.watchdog.hung(&self.processes.running(), status, Instant::now()) {
            self.screen.line(&format!(
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
            self.directory.record(&State { epoch: epoch.number, ..State::default() })?;
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
            waiting: None,
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
            verifiers: vec![],
            supervisors: vec![],
            roles: Roles {
                inference: self.processes.counts(Role::Engine(EnginePurpose::Rollouts)),
                evaluation: self.processes.counts(Role::Engine(EnginePurpose::Evaluation)),
                reward: self.processes.counts(Role::Engine(EnginePurpose::Reward)),
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

    fn show_progress(&mut self, status: Option<&CoordinatorStatus>) -> io::Result<()> {
        let total = self.job.spec.training.steps;
        for metrics in self.metrics.read()? {
            self.screen.line(&lines::step(&metrics, total))?;
        }
        for metrics in self.evaluations.read()? {
            for line in results::evaluation(&metrics, total) {
                self.screen.line(&line)?;
            }
        }
        self.screen.progress(
            status.map_or(self.screen.position(), |status| status.step),
            &lines::phase(status),
        );
        Ok(())
    }

    /// Prints a restart of the learners, with its cause if a learner failed. Other causes are exits
    /// of processes, which are printed already.
    fn show_restart(&mut self, facts: &Facts) -> io::Result<()> {
        let Some(status) = facts.report() else { return Ok(()) };
        let is_new = self.attempt.is_some_and(|attempt| attempt < status.attempt);
        self.attempt = Some(status.attempt);
        let failure = status.last_failure.as_ref().filter(|own| self.failure.as_ref() != Some(own));
        self.failure.clone_from(&status.last_failure);
        match failure {
            _ if !is_new => Ok(()),
            Some(failure) => {
                let cause = self.cause(&failure.message, facts);
                self.screen.line(&format!("restarting the learners: {cause}"))
            }
            None => self.screen.line("restarting the learners from the newest checkpoint"),
        }
    }

    /// Prints restarts of groups of `trainer.groups`, as [`Self::show_restart`].
    fn show_group_restarts(&mut self, facts: &Facts) -> io::Result<()> {
        for group in facts.report().map(|report| report.groups.as_slice()).unwrap_or_default() {
            let before = self.groups.insert(group.name.clone(), group.attempt);
            if before.is_none_or(|before| before >= group.attempt) {
                continue;
            }
            let cause = group
                .last_failure
                .as_ref()
                .map(|failure| self.with_log(&failure.message, failure.supervisor.as_deref()));
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            self.screen.line(&format!("restarting group {}{cause}", group.name))?;
        }
        Ok(())
    }

    /// Prints what the run waits for, once, and the end of the wait.
    fn show_wait(&mut self, wait: Option<(String, String)>) -> io::Result<()> {
        if wait.as_ref().map(|(reason, _)| reason) == self.wait.as_ref() {
            return Ok(());
        }
        let line = wait.as_ref().map_or_else(
            || "the run continues".to_owned(),
            |(reason, message)| format!("{reason}: {}", lines::one_line(message)),
        );
        let is_end = wait.is_none();
        self.wait = wait.map(|(reason, _)| reason);
        // An interrupted run stops instead.
        if is_end && self.interrupted { Ok(()) } else { self.screen.line(&line) }
    }

    fn cause(&self, message: &str, facts: &Facts) -> String {
        let supervisor =
            facts.report().and_then(|report| report.last_failure.as_ref()?.supervisor.as_deref());
        self.with_log(message, supervisor)
    }

    /// A message of a failure in one line, with the log of its supervisor, or of the coordinator.
    fn with_log(&self, message: &str, supervisor: Option<&str>) -> String {
        let log = self.directory.log(supervisor.unwrap_or("coordinator"));
        format!("{} (log: {})", lines::one_line(message), log.display())
    }
}

fn released(facts: &Facts) -> Ending {
    let is_saved =
        |report: &&CoordinatorStatus| report.phase == Phase::Drained && report.checkpoint.is_some();
    if facts.report().as_ref().is_some_and(is_saved) { Ending::Drained } else { Ending::Stopped }
}
