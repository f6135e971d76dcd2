//! Instructions to learners: a pure function of their position, so the next request repeats a lost
//! response.
//!
//! After `s` steps, the first that applies: drain, or a terminating trainer pod (checkpoint,
//! exit) · the number of steps depends on data that is not open (wait) · checkpoint due · export
//! due · validation due (measure the loss) · evaluation on separate engines due (write its
//! weights) · evaluation or rollouts need weights that engines lack (publish) · they are in
//! progress (wait) · batch `s + 1` is fixed (train) · last step done (export, exit). With
//! sampling ahead, publication and training wait only for the rollouts of batch `s + 1`
//! ([`super::ahead`]).

use std::collections::BTreeSet;
use std::path::PathBuf;

use rljob_crds::job::WeightSyncMethod;
use rljob_crds::names::{EXPORT_DIR, EXPORTS_DIR, WEIGHTS_DIR};
use rljob_protocol::learner::{Instruction, Transfer};
use rljob_protocol::status::UNKNOWN_STEPS;
use rljob_protocol::version::Version;

use super::work::Work;
use super::{Now, Publication, Rejection, Route, Run, Stage};

/// Silence of the senders after which a publication is instructed again, because the response with
/// the instruction was lost.
const PUBLICATION_PATIENCE: Now = Now::from_secs(30);
/// The same for a checkpoint that the end of the run or a drain waits for.
const CHECKPOINT_PATIENCE: Now = Now::from_secs(600);

/// State of an engine that instructions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineView {
    pub name: String,
    /// Index among the engines of the desired state.
    pub index: u32,
    /// Whether a weight update can be tried.
    pub usable: bool,
    /// Version of its weights, if it is trusted.
    pub version: Option<Version>,
    /// Process group of its last broadcast, if that succeeded.
    pub group: Option<KeptGroup>,
}

/// A process group that an engine and a sender keep after a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGroup {
    pub name: String,
    /// Attempt of the sender.
    pub attempt: u32,
    /// Rank of the sender.
    pub sender: u32,
}

impl Run {
    /// Instruction for rank 0 of `attempt` after `steps` steps.
    pub fn instruct(
        &mut self,
        attempt: u32,
        steps: u32,
        engines: &[EngineView],
        now: Now,
    ) -> Result<Instruction, Rejection> {
        let instruction = self.next_instruction(attempt, steps, engines, now)?;
        self.activity = Some(self.activity_of(&instruction, engines));
        Ok(instruction)
    }

    fn next_instruction(
        &mut self,
        attempt: u32,
        steps: u32,
        engines: &[EngineView],
        now: Now,
    ) -> Result<Instruction, Rejection> {
        self.check_position(attempt, steps)?;
        let world = match (&self.record.trainer.stage, &self.desired) {
            (Stage::Running(layout), Some(_)) => layout.world_size,
            _ => return Ok(Instruction::Wait),
        };
        self.position = Some(steps);
        if self.draining() || self.terminating_member() {
            return Ok(if steps == 0 || self.has_checkpoint(steps) {
                Instruction::Exit
            } else {
                self.checkpoint(steps, now)
            });
        }
        if self.settings.total_steps == UNKNOWN_STEPS {
            return Ok(Instruction::Wait);
        }
        if steps > 0 && self.checkpoint_due(steps) {
            return Ok(self.checkpoint(steps, now));
        }
        if self.export_due(steps) {
            let version = Version { step: steps, attempt: self.record.trainer.attempt };
            self.export_ordered = Some(version);
            return Ok(Instruction::Export { version, path: self.export_path(steps) });
        }
        if let Some(instruction) = self.order_evaluation(steps) {
            return Ok(instruction);
        }
        if self.settings.ahead() {
            return Ok(self.instruct_ahead(steps, world, engines, now));
        }
        Ok(match self.work_at(steps) {
            Work::Evaluate(version) | Work::Rollout(version) => {
                self.publish(version, world, engines, now)
            }
            Work::Validate if self.data_open => Instruction::Validate { step: steps },
            Work::Validate | Work::RolloutAhead | Work::Prepare { .. } => Instruction::Wait,
            Work::None if steps == self.settings.total_steps => self.finish(steps, now),
            Work::None if self.awaits_groups(steps.saturating_add(1)) => Instruction::Wait,
            Work::None => self.train(steps.saturating_add(1)),
        })
    }

    /// Rejects an attempt other than the current one, and more steps than the run has.
    fn check_position(&self, attempt: u32, steps: u32) -> Result<(), Rejection> {
        self.fence(attempt)?;
        let total = self.settings.total_steps;
        if steps <= total {
            return Ok(());
        }
        Err(Rejection::Invalid(format!("{steps} steps done of {total}")))
    }

    /// Training of `step`, with the number of steps if the spec lacks it.
    pub(super) fn train(&self, step: u32) -> Instruction {
        let derived = self.settings.epochs.map(|_| self.settings.total_steps);
        Instruction::Train { step, total_steps: derived }
    }

    fn has_checkpoint(&self, steps: u32) -> bool {
        self.facts.checkpoints.iter().any(|version| version.step == steps)
    }

    /// A checkpoint is due every n steps and at the last step, unless it is complete or in
    /// progress.
    fn checkpoint_due(&self, steps: u32) -> bool {
        let every =
            self.desired.as_ref().map_or(1, |desired| desired.checkpoint.every_steps.max(1));
        let ordered = self.checkpoint_ordered.is_some_and(|(version, _)| version.step == steps);
        (steps == self.settings.total_steps || steps.is_multiple_of(every))
            && !ordered
            && !self.has_checkpoint(steps)
    }

    /// Instructs the checkpoint once and then waits for it.
    fn checkpoint(&mut self, steps: u32, now: Now) -> Instruction {
        let version = Version { step: steps, attempt: self.record.trainer.attempt };
        if self.checkpoint_ordered.is_some_and(|(ordered, at)| {
            ordered == version && now.saturating_sub(at) < CHECKPOINT_PATIENCE
        }) {
            return Instruction::Wait;
        }
        self.checkpoint_ordered = Some((version, now));
        Instruction::Checkpoint { version, path: self.checkpoint_path(version) }
    }

    /// An intermediate export is due every n steps before the last, unless it is complete or in
    /// progress. No checkpoint is newer than a missing export, so a restart misses none.
    fn export_due(&self, steps: u32) -> bool {
        let every = self.desired.as_ref().and_then(|desired| desired.checkpoint.export_every_steps);
        let ordered = self.export_ordered.is_some_and(|version| version.step == steps);
        steps > self.facts.exported_step
            && steps < self.settings.total_steps
            && every.is_some_and(|every| steps.is_multiple_of(every))
            && !ordered
    }

    /// Folder of an intermediate export.
    pub(super) fn export_path(&self, step: u32) -> PathBuf {
        self.settings.run_directory.join(EXPORTS_DIR).join(format!("step-{step}"))
    }

    pub(super) fn finish(&mut self, steps: u32, now: Now) -> Instruction {
        if !self.record.exported {
            if self.evaluates_export() {
                return Instruction::Wait;
            }
            return Instruction::Export {
                version: Version { step: steps, attempt: self.record.trainer.attempt },
                path: self.settings.run_directory.join(EXPORT_DIR),
            };
        }
        if !self.has_checkpoint(steps) {
            self.checkpoint(steps, now)
        } else if self.record.evaluations.is_empty() {
            Instruction::Exit
        } else {
            Instruction::Wait
        }
    }

    pub(super) fn publish(
        &mut self,
        version: Version,
        world: u32,
        engines: &[EngineView],
        now: Now,
    ) -> Instruction {
        if self
            .publication
            .as_ref()
            .is_some_and(|publication| publication.in_progress(version, engines, now))
        {
            return Instruction::Wait;
        }
        match self.settings.method {
            WeightSyncMethod::Disk if self.folder_of(version).is_some() => Instruction::Wait,
            WeightSyncMethod::Disk => {
                let path = self
                    .settings
                    .run_directory
                    .join(WEIGHTS_DIR)
                    .join(format!("{version}.{}", self.unique()));
                self.publication =
                    Some(Publication { version, issued: now, route: Route::Disk(path.clone()) });
                Instruction::PublishToDisk { version, path }
            }
            WeightSyncMethod::Distributed => {
                self.serial = self.serial.saturating_add(1);
                let transfers: Vec<_> = engines
                    .iter()
                    .filter(|engine| engine.lacks(version))
                    .map(|engine| self.transfer(version, engine, world))
                    .collect();
                if transfers.is_empty() {
                    return Instruction::Wait;
                }
                let waiting = transfers.iter().map(|transfer| transfer.sender).collect();
                let outstanding =
                    transfers.iter().map(|transfer| transfer.engine.clone()).collect();
                self.publication = Some(Publication {
                    version,
                    issued: now,
                    route: Route::Broadcast { transfers: transfers.clone(), waiting, outstanding },
                });
                Instruction::PublishByBroadcast { version, transfers }
            }
        }
    }

    /// A transfer over the group that engine and sender have, else over one with a fresh name.
    fn transfer(&self, version: Version, engine: &EngineView, world: u32) -> Transfer {
        let sender = engine.index.checked_rem(world).unwrap_or_default();
        let is_current = |group: &&KeptGroup| {
            group.attempt == self.record.trainer.attempt && group.sender == sender
        };
        let kept = engine.group.as_ref().filter(is_current).map(|group| group.name.clone());
        let fresh = || format!("{version}.{:x}-{}.{}", self.incarnation, self.serial, engine.index);
        Transfer {
            engine: engine.name.clone(),
            sender,
            kept: kept.is_some(),
            group: kept.unwrap_or_else(fresh),
            world_size: self.settings.engine_ranks.saturating_add(1),
        }
    }

    /// Complete folder with the weights of `version`, if they were published to disk.
    pub fn folder_of(&self, version: Version) -> Option<&std::path::Path> {
        self.record
            .published
            .as_ref()
            .filter(|published| published.version == version)?
            .folder
            .as_deref()
    }

    /// Time of the instruction for the publication in progress, or for the newest one.
    pub fn publication_issued(&self, version: Version) -> Option<Now> {
        self.publication
            .as_ref()
            .filter(|publication| publication.version == version)
            .map(|publication| publication.issued)
    }
}

impl EngineView {
    /// Whether the engine can be updated and holds another version.
    pub fn lacks(&self, version: Version) -> bool {
        self.usable && self.version != Some(version)
    }
}

impl Publication {
    /// Whether `version` is being sent to engines that can be updated. An engine that hangs in its
    /// update does not block the others.
    fn in_progress(&self, version: Version, engines: &[EngineView], now: Now) -> bool {
        let patient = now.saturating_sub(self.issued) < PUBLICATION_PATIENCE;
        let is_under_way = |outstanding: &BTreeSet<String>| {
            let others = engines
                .iter()
                .any(|engine| engine.lacks(version) && !outstanding.contains(&engine.name));
            !outstanding.is_empty() && !others
        };
        self.version == version
            && match &self.route {
                Route::Disk(_) => patient,
                Route::Broadcast { waiting, outstanding, .. } if waiting.is_empty() => {
                    is_under_way(outstanding)
                }
                Route::Broadcast { outstanding, .. } => !outstanding.is_empty() && patient,
            }
    }
}
