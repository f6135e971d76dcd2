//! Groups of `trainer.groups`: which batch their frozen models infer, and which results the run
//! waits for. Each has its lifecycle ([`super::learner_group`]).
//!
//! ```text
//!  batch s fixed ─▶ infer s ─▶ log-probabilities in the journal ─▶ train s
//! ```
//!
//! Batches are inferred in order, also while the trainer trains earlier steps or restarts. A group
//! keeps no state: a new attempt continues with the first batch whose results are missing.

use rljob_protocol::group::GroupInstruction;
use rljob_protocol::status::GroupState;
use rljob_protocol::supervisor::SupervisorReport;

use super::learner_group::{Conditions, LearnerGroup};
use super::{Now, Rejection, Run, Stage};

impl Run {
    /// Stores a report of a supervisor of a group. Returns false if its name belongs to another
    /// process.
    pub(super) fn frozen_report(
        &mut self,
        group: &str,
        name: &str,
        report: SupervisorReport,
        now: Now,
    ) -> Result<bool, Rejection> {
        let conditions = Conditions::new(self.desired.as_ref(), &self.record, self.incarnation);
        let state = self.frozen.get_mut(group).ok_or_else(|| unknown(group))?;
        let record = self.record.groups.entry(group.to_owned()).or_default();
        Ok(state.report(record, (name, report), &conditions, now))
    }

    /// Advances the groups. One that has used up its restarts fails the run.
    pub(super) fn tick_frozen(&mut self, now: Now) {
        let conditions = Conditions::new(self.desired.as_ref(), &self.record, self.incarnation);
        let mut failure = None;
        for (name, group) in &mut self.frozen {
            let record = self.record.groups.entry(name.clone()).or_default();
            group.tick(record, &conditions, now);
            if record.stage == Stage::Failed {
                failure.clone_from(&record.last_failure);
            }
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Rejects an attempt of a group other than its current one.
    pub fn fence_group(&self, group: &str, attempt: u32) -> Result<(), Rejection> {
        self.record.groups.get(group).ok_or_else(|| unknown(group))?.fence(attempt)
    }

    /// Instruction for rank 0 of `attempt` of a group.
    pub fn instruct_group(&self, group: &str, attempt: u32) -> Result<GroupInstruction, Rejection> {
        self.fence_group(group, attempt)?;
        let state = self.frozen.get(group).ok_or_else(|| unknown(group))?;
        let layout = self.record.groups.get(group).and_then(|record| record.stage.layout());
        let is_terminating = layout.is_some_and(|layout| state.any_terminating(layout));
        Ok(if self.record.exported || self.draining() || is_terminating {
            GroupInstruction::Exit
        } else {
            self.next_inferred()
                .map_or(GroupInstruction::Wait, |step| GroupInstruction::Infer { step })
        })
    }

    /// The first step that is not trained yet whose batch is fixed and not inferred.
    fn next_inferred(&self) -> Option<u32> {
        let restored = || self.restore().map_or(0, |restore| restore.version.step);
        let done = self.position.unwrap_or_else(restored);
        let steps = done.saturating_add(1)..=self.facts.fixed_step;
        steps.into_iter().find(|step| !self.facts.inferred.contains(step))
    }

    /// Number of ranks of a running attempt of a group.
    pub fn group_world_size(&self, group: &str) -> Option<u32> {
        let record = self.record.groups.get(group)?;
        record.stage.layout().map(|layout| layout.world_size)
    }

    /// The log-probabilities of a step's batch are in the journal.
    pub fn inferred(&mut self, group: &str, step: u32) {
        self.facts.inferred.insert(step);
        if let Some(record) = self.record.groups.get_mut(group) {
            record.restarts_without_progress = 0;
        }
    }

    /// Whether learners can train on the batch of `step`.
    pub fn is_ready(&self, step: u32) -> bool {
        self.is_fixed(step) && !self.awaits_groups(step)
    }

    /// Whether the batch of `step` is fixed and not inferred.
    pub(super) fn awaits_groups(&self, step: u32) -> bool {
        !self.frozen.is_empty() && self.is_fixed(step) && !self.facts.inferred.contains(&step)
    }

    /// State of each group.
    pub(super) fn group_states(&self, now: Now) -> Vec<GroupState> {
        let state = |(name, group): (&String, &LearnerGroup)| {
            let record = self.record.groups.get(name).cloned().unwrap_or_default();
            GroupState {
                name: name.clone(),
                attempt: record.attempt,
                restarts: record.restarts,
                running: matches!(record.stage, Stage::Running(_)),
                last_failure: record.last_failure.clone(),
                supervisors: group.supervisor_states(&record, now),
                memory: None,
            }
        };
        self.frozen.iter().map(state).collect()
    }
}

fn unknown(group: &str) -> Rejection {
    Rejection::Invalid(format!("the run has no group `{group}` in trainer.groups"))
}

#[cfg(test)]
mod tests;
