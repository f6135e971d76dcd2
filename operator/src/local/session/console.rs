//! What a session prints: steps, evaluations, restarts, waits.

use std::collections::BTreeMap;
use std::io;

use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE};
use rljob_dashboard::records::Tail;
use rljob_protocol::status::{
    CoordinatorStatus, EvaluationMetrics, LearnerFailure, StepMetrics, UNKNOWN_STEPS,
};

use crate::decide::Facts;
use crate::local::directory::RunDirectory;
use crate::local::screen::Screen;
use crate::local::{lines, results};
use crate::status::failure_text;
use crate::validate::ValidatedJob;

/// The lines and the progress bar of a session, with what they have shown.
pub struct Console<'a> {
    job: &'a ValidatedJob,
    directory: &'a RunDirectory,
    /// Steps of the run; [`UNKNOWN_STEPS`] until the coordinator reports those of epochs.
    steps: u32,
    screen: Screen,
    metrics: Tail,
    evaluations: Tail,
    /// Number of the learner group in the newest report.
    attempt: Option<u32>,
    /// Failure in the newest report.
    failure: Option<LearnerFailure>,
    /// Number of each group of `trainer.groups` in the newest report.
    groups: BTreeMap<String, u32>,
    /// Reason of the wait that was printed.
    wait: Option<String>,
    /// Whether a failed try of a reward was printed.
    has_reward_failure: bool,
}

impl<'a> Console<'a> {
    /// Creates a console. Records that are already in the run directory are not printed.
    pub fn new(job: &'a ValidatedJob, directory: &'a RunDirectory) -> io::Result<Self> {
        let mut metrics = Tail::new(directory.path().join(METRICS_FILE));
        let mut evaluations = Tail::new(directory.path().join(EVALUATIONS_FILE));
        let mut done = 0;
        metrics.each(|step: StepMetrics| {
            done = step.step;
            Ok(())
        })?;
        evaluations.each(|_: EvaluationMetrics| Ok(()))?;
        let steps = job.spec.training.known_steps().unwrap_or(UNKNOWN_STEPS);
        let screen = Screen::new(&job.name, steps);
        screen.resume_at(done);
        Ok(Self {
            job,
            directory,
            steps,
            screen,
            metrics,
            evaluations,
            attempt: None,
            failure: None,
            groups: BTreeMap::new(),
            wait: None,
            has_reward_failure: false,
        })
    }

    /// Prints a line above the progress bar.
    pub fn line(&self, line: &str) -> io::Result<()> {
        self.screen.line(line)
    }

    /// Shows that the processes are being stopped.
    pub fn stopping(&self) {
        self.screen.progress(self.screen.position(), "stopping");
    }

    /// Removes the progress bar.
    pub fn close(&self) {
        self.screen.close();
    }

    /// Prints new records and moves the progress bar.
    pub fn show_progress(&mut self, status: Option<&CoordinatorStatus>) -> io::Result<()> {
        if let Some(status) = status.filter(|status| status.total_steps != self.steps) {
            self.steps = status.total_steps;
            self.screen.set_steps(self.steps);
        }
        let total = self.steps;
        for metrics in self.metrics.read()? {
            self.screen.line(&lines::step(&metrics, total))?;
        }
        for metrics in self.evaluations.read()? {
            for line in results::evaluation(&metrics, total, &self.job.spec) {
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
    pub fn show_restart(&mut self, facts: &Facts) -> io::Result<()> {
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
    pub fn show_group_restarts(&mut self, facts: &Facts) -> io::Result<()> {
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

    /// Prints the first failed try of a reward.
    pub fn show_reward_failure(&mut self, status: Option<&CoordinatorStatus>) -> io::Result<()> {
        let failure = status.and_then(|status| status.reward_failure.as_ref());
        let Some(failure) = failure.filter(|_| !self.has_reward_failure) else { return Ok(()) };
        self.has_reward_failure = true;
        self.screen.line(&lines::one_line(&failure_text(failure)))
    }

    /// Prints what the run waits for, once, and the end of the wait, unless the run is interrupted.
    pub fn show_wait(
        &mut self,
        wait: Option<(String, String)>,
        interrupted: bool,
    ) -> io::Result<()> {
        if wait.as_ref().map(|(reason, _)| reason) == self.wait.as_ref() {
            return Ok(());
        }
        let line = wait.as_ref().map_or_else(
            || "the run continues".to_owned(),
            |(reason, message)| format!("{reason}: {}", lines::one_line(message)),
        );
        let is_end = wait.is_none();
        self.wait = wait.map(|(reason, _)| reason);
        if is_end && interrupted { Ok(()) } else { self.screen.line(&line) }
    }

    /// A message of the last failure in one line, with the log that has more.
    pub fn cause(&self, message: &str, facts: &Facts) -> String {
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
