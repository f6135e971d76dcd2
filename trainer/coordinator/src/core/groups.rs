//! Groups of a run: the trainer, whose stage is that of the run, and those of `trainer.groups`.
//!
//! ```text
//!  report of a supervisor ─▶ its group ─▶ tick of all groups ─▶ order
//!                                            │ the trainer formed, or its attempt ended: reset
//!                                            └ a group of frozen models failed: the run fails
//! ```

use rljob_protocol::gpu_fault::{GpuFault, MAX_GPU_FAULTS};
use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::{Order, Restore, SupervisorReport};
use rljob_protocol::version::Version;

use super::learner_group::{Change, Conditions};
use super::{Now, Rejection, Run, Stage};

impl Run {
    /// Processes the report of a supervisor and returns its order.
    pub fn handle_report(
        &mut self,
        name: &str,
        report: SupervisorReport,
        now: Now,
    ) -> Result<Order, Rejection> {
        let group = report.group.clone();
        let is_its_name = match &group {
            None => {
                let conditions =
                    Conditions::new(self.desired.as_ref(), &self.record, self.incarnation);
                self.trainer.report(&mut self.record.trainer, (name, report), &conditions, now)
            }
            Some(group) => self.frozen_report(group, name, report, now)?,
        };
        if !is_its_name {
            return Err(Rejection::Replaced(name.to_owned()));
        }
        self.tick(now);
        Ok(self.order(group.as_deref(), name))
    }

    /// Faults of GPUs in a report that earlier reports of the same supervisor process lack.
    pub fn new_gpu_faults(&self, name: &str, report: &SupervisorReport) -> Vec<GpuFault> {
        let group = match &report.group {
            None => Some(&self.trainer),
            Some(group) => self.frozen.get(group),
        };
        let known = group
            .and_then(|group| group.supervisors.get(name))
            .filter(|known| known.instance == report.instance)
            .and_then(|known| known.gpu_faults.last())
            .map_or(0, |fault| fault.number);
        let newest = report.gpu_faults.iter().rev().take(MAX_GPU_FAULTS).rev();
        newest.filter(|fault| fault.number > known && fault.is_valid()).cloned().collect()
    }

    /// Advances the groups as time passes.
    pub fn tick(&mut self, now: Now) {
        if !self.settings.learners && self.tick_without_learners() {
            return;
        }
        let conditions = Conditions {
            may_form: self.verified,
            restore: self.restore(),
            ..Conditions::new(self.desired.as_ref(), &self.record, self.incarnation)
        };
        match self.trainer.tick(&mut self.record.trainer, &conditions, now) {
            Change::None => {}
            Change::Formed => {
                self.position = None;
                self.checkpoint_ordered = None;
                self.export_ordered = None;
                self.ordered.clear();
                self.publication = None;
            }
            Change::NewAttempt => {
                self.verified = self.facts.checkpoints.is_empty();
                self.position = None;
                self.publication = None;
            }
        }
        self.tick_frozen(now);
    }

    /// Fails the run for a reason that a restart cannot repair.
    pub fn fail(&mut self, failure: LearnerFailure) {
        let record = &mut self.record.trainer;
        let stage = match record.stage.clone() {
            Stage::Running(layout) | Stage::Stopping { layout, .. } => {
                Stage::Stopping { layout, failure: Some(failure.clone()), lost: false, fatal: true }
            }
            Stage::Forming { .. } | Stage::Drained => Stage::Failed,
            Stage::Finished | Stage::Failed => return,
        };
        record.last_failure = Some(failure);
        record.stage = stage;
    }

    /// Order for a supervisor of a group, or of the trainer, in the current state.
    fn order(&self, group: Option<&str>, name: &str) -> Order {
        if self.desired.is_none() {
            return Order::Wait;
        }
        let ended = matches!(self.record.trainer.stage, Stage::Finished | Stage::Failed);
        match group.and_then(|group| self.record.groups.get(group)) {
            Some(record) if !ended => record.order(name),
            _ => self.record.trainer.order(name),
        }
    }

    /// Checkpoint that a group starts from: the newest one, or that of `restoreFrom` if the run has
    /// none.
    pub(super) fn restore(&self) -> Option<Restore> {
        let own = self
            .newest_checkpoint()
            .map(|version| Restore { version, path: self.checkpoint_path(version) });
        own.or_else(|| self.settings.restore_from.clone())
    }

    /// Newest complete checkpoint.
    pub fn newest_checkpoint(&self) -> Option<Version> {
        self.facts.checkpoints.last().copied()
    }

    /// Folder of a checkpoint.
    pub fn checkpoint_path(&self, version: Version) -> std::path::PathBuf {
        self.settings
            .run_directory
            .join(rljob_crds::names::CHECKPOINTS_DIR)
            .join(version.to_string())
    }
}
