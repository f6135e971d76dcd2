//! State machine of the run: groups, instructions, failures. Pure: no IO, clock or randomness; time
//! and names are parameters.
//!
//! ```text
//!   desired ──▶┌────────────────────────────────┐──▶ orders to supervisors        groups
//!   reports ──▶│ Run = Settings + Record + Facts│──▶ instructions to learners     instruct
//!   time    ──▶└────────────────────────────────┘──▶ work, status                 work, status
//! ```
//!
//! `Record` is the durable part. The caller journals it before it answers a request.

mod activity;
pub mod admission;
pub mod ahead;
pub mod backoff;
mod due;
mod evaluations;
pub mod frozen_groups;
pub mod groups;
pub mod hang;
pub mod instruct;
pub mod learner_failure;
pub mod learner_group;
pub mod record;
mod rejection;
pub mod reports;
pub mod settings;
pub mod status;
pub mod supervisors;
pub mod termination;
#[cfg(test)]
mod tests;
mod without_learners;
pub mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rljob_protocol::desired::{Desired, Mode};
use rljob_protocol::learner::{Transfer, ValidationReport};
use rljob_protocol::status::Activity;
use rljob_protocol::version::Version;

use learner_group::LearnerGroup;
pub use record::{Now, Record, Stage};
pub use rejection::Rejection;
pub use settings::Settings;

/// Facts at start in addition to the record, from the journal and the run store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Newest step that learners reported.
    pub last_step: u32,
    /// Newest step whose batch is fixed.
    pub fixed_step: u32,
    /// Steps at which an evaluation is recorded.
    pub evaluated: BTreeSet<u32>,
    /// Steps whose batch the groups of `trainer.groups` have inferred.
    pub inferred: BTreeSet<u32>,
    /// Complete checkpoints.
    pub checkpoints: BTreeSet<Version>,
    /// Newest step with a complete intermediate export; 0 without one.
    pub exported_step: u32,
}

/// Publication of weights in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    version: Version,
    issued: Now,
    route: Route,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Disk(PathBuf),
    Broadcast {
        transfers: Vec<Transfer>,
        /// Senders that have not reported yet.
        waiting: BTreeSet<u32>,
        /// Engines whose transfer has not ended.
        outstanding: BTreeSet<String>,
    },
}

/// The parts of a run that others depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    record: Record,
    facts: Facts,
    desired: Option<Desired>,
    work: work::Work,
    publication: Option<Publication>,
    terminating_member: bool,
}

/// The run.
#[derive(Clone, Debug)]
pub struct Run {
    settings: Settings,
    record: Record,
    facts: Facts,
    /// Whether the complete checkpoints were verified since a group last used them.
    verified: bool,
    desired: Option<Desired>,
    trainer: LearnerGroup,
    /// Groups of `trainer.groups`, by name.
    frozen: BTreeMap<String, LearnerGroup>,
    /// Steps done when rank 0 of the current attempt last asked; none before it did.
    position: Option<u32>,
    /// What the learners of the current attempt do or wait for; none before they ask.
    activity: Option<Activity>,
    checkpoint_ordered: Option<(Version, Now)>,
    export_ordered: Option<Version>,
    data_open: bool,
    /// The newest loss of the evaluation data, and after how many steps it was measured.
    validation: Option<(u32, ValidationReport)>,
    publication: Option<Publication>,
    /// Evaluation beside training that has begun.
    evaluating: Option<Version>,
    /// Evaluations on separate engines whose weights are being written.
    ordered: Vec<record::PendingEvaluation>,
    incarnation: u64,
    serial: u64,
}

impl Run {
    /// A run restored from the journal. `incarnation` is a random number of the coordinator
    /// process, part of folder and group names, so that no name is used twice.
    pub fn new(
        settings: Settings,
        mut record: Record,
        facts: Facts,
        incarnation: u64,
        now: Now,
    ) -> Self {
        // The coordinator was lost between the two writes.
        record.evaluations.retain(|pending| !facts.evaluated.contains(&pending.version.step));
        Self {
            trainer: LearnerGroup::new(settings.trainer, now),
            frozen: LearnerGroup::by_name(&settings.groups, now),
            settings,
            record,
            verified: facts.checkpoints.is_empty(),
            facts,
            desired: None,
            position: None,
            activity: None,
            checkpoint_ordered: None,
            export_ordered: None,
            data_open: false,
            validation: None,
            publication: None,
            evaluating: None,
            ordered: Vec::new(),
            incarnation,
            serial: 0,
        }
    }

    /// The part that must be durable before a result is returned.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The attempt whose learners are ordered to run.
    pub fn running_attempt(&self) -> Option<u32> {
        matches!(self.record.trainer.stage, Stage::Running(_))
            .then_some(self.record.trainer.attempt)
    }

    /// The operator's desired state, once received.
    pub fn desired(&self) -> Option<&Desired> {
        self.desired.as_ref()
    }

    /// Takes the desired state. A lower epoch than any seen is rejected, and so is a lower
    /// generation within an epoch.
    pub fn set_desired(&mut self, desired: Desired) -> Result<(), Rejection> {
        let epoch = self.record.epoch.unwrap_or(0);
        if desired.epoch < epoch {
            return Err(Rejection::Fenced { what: "epoch", sent: desired.epoch, current: epoch });
        }
        if let Some(old) = self
            .desired
            .as_ref()
            .filter(|old| old.epoch == desired.epoch && old.generation > desired.generation)
        {
            return Err(Rejection::Invalid(format!(
                "generation {} is older than {}, which is applied",
                desired.generation, old.generation
            )));
        }
        self.record.epoch = Some(desired.epoch);
        for group in std::iter::once(&mut self.trainer).chain(self.frozen.values_mut()) {
            group.supervisors.set_pods(&desired.supervisors);
        }
        self.desired = Some(desired);
        Ok(())
    }

    /// Rejects an attempt other than the current one.
    pub fn fence(&self, attempt: u32) -> Result<(), Rejection> {
        self.record.trainer.fence(attempt)
    }

    /// Extends deadlines by a time in which the coordinator processed no requests.
    pub fn extend_deadlines(&mut self, time: Now) {
        for group in std::iter::once(&mut self.trainer).chain(self.frozen.values_mut()) {
            group.extend_deadlines(time);
        }
    }

    /// Newest reported step.
    pub fn last_step(&self) -> u32 {
        self.facts.last_step
    }

    /// Replaces the set of complete checkpoints by what the run directory holds.
    pub fn set_checkpoints(&mut self, complete: BTreeSet<Version>) {
        self.verified &= self.facts.checkpoints.is_superset(&complete);
        self.facts.checkpoints = complete;
    }

    /// The complete checkpoints that a group may start from: their files are what they should be.
    pub fn checkpoints_verified(&mut self, usable: BTreeSet<Version>) {
        self.facts.checkpoints = usable;
        self.verified = true;
    }

    /// Whether a group forms whose checkpoints are not verified yet.
    pub fn awaits_verification(&self) -> bool {
        matches!(self.record.trainer.stage, Stage::Forming { .. }) && !self.verified
    }

    /// Complete checkpoints.
    pub fn checkpoints(&self) -> &BTreeSet<Version> {
        &self.facts.checkpoints
    }

    /// Whether the run has ended or is drained.
    pub fn is_over(&self) -> bool {
        matches!(self.record.trainer.stage, Stage::Drained | Stage::Finished | Stage::Failed)
    }

    /// The parts of the run that waiters observe.
    pub fn outline(&self) -> Outline {
        Outline {
            record: self.record.clone(),
            facts: self.facts.clone(),
            desired: self.desired.clone(),
            work: self.work(),
            publication: self.publication.clone(),
            terminating_member: self.terminating_member(),
        }
    }

    fn draining(&self) -> bool {
        self.desired.as_ref().is_some_and(|desired| desired.mode == Mode::Drain)
    }

    fn unique(&mut self) -> String {
        self.serial = self.serial.saturating_add(1);
        format!("{:x}-{}", self.incarnation, self.serial)
    }
}
