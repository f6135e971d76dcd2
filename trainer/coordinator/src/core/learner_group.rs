//! Lifecycle of a learner group: forming, running, stopping, the verdict on failures, and the
//! orders to supervisors. The trainer is a group, and so is each of `trainer.groups`.
//!
//! ```text
//!  Forming ──enough supervisors──▶ Running ──failed learner, lost supervisor──▶ Stopping
//!     ▲                              │                                             │ all stopped
//!     ├── attempt + 1, no backoff ───┤ all exited with 0                           ▼
//!     │                              └──▶ Finished / Drained                    verdict
//!     └── attempt + 1, backoff ────────────────────────────────────────────────────┤
//!                                                               Failed / Drained ◀─┘
//! ```
//!
//! The verdict waits until all members stopped: a learner that lost its peer reports earlier than
//! the silence of the lost pod is detected. Exits around a lost supervisor are not counted.

use std::collections::BTreeMap;

use rljob_crds::failure_policy::FailureAction;
use rljob_protocol::desired::{Desired, Mode, RestartPolicy};
use rljob_protocol::status::SupervisorState;
use rljob_protocol::supervisor::{Group, Order, Restore, SupervisorReport};

use super::learner_failure::{consequence, failure_of, learner_failed};
use super::record::{GroupRecord, Layout, Member, Record};
use super::supervisors::{self, Standing, Supervisors};
use super::{Now, Stage, backoff};

/// Processes of a complete group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// Supervisors.
    pub supervisors: u32,
    /// Learners of each supervisor.
    pub processes: u32,
}

/// A learner group: what is known of it beside its durable [`GroupRecord`].
#[derive(Clone, Debug)]
pub struct LearnerGroup {
    size: GroupSize,
    pub(super) supervisors: Supervisors,
    /// When the group last changed hands, for members that have not reported yet.
    since: Now,
    backoff_until: Option<Now>,
}

/// What the next stage of a group depends on besides its reports.
#[derive(Clone, Debug)]
pub struct Conditions<'a> {
    pub desired: Option<&'a Desired>,
    /// Whether learners may start: what they load is known to be complete.
    pub may_form: bool,
    /// Whether the group has done its work, so that no exit is a failure.
    pub is_done: bool,
    /// Whether it ends then: nothing that the run still does needs it.
    pub may_finish: bool,
    /// Checkpoint that learners start from.
    pub restore: Option<Restore>,
    /// Random number of the coordinator process.
    pub incarnation: u64,
}

/// Change of a group's stage that the run depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// Learners of the attempt were ordered to run.
    Formed,
    /// The attempt ended; the next one has not formed yet.
    NewAttempt,
}

impl<'a> Conditions<'a> {
    /// Those of a group that may form and starts from no checkpoint.
    pub fn new(desired: Option<&'a Desired>, record: &Record, incarnation: u64) -> Self {
        Self {
            desired,
            may_form: true,
            is_done: record.exported,
            may_finish: record.evaluations.is_empty(),
            restore: None,
            incarnation,
        }
    }

    fn is_draining(&self) -> bool {
        self.desired.is_some_and(|desired| desired.mode == Mode::Drain)
    }

    fn restart_policy(&self) -> Option<&RestartPolicy> {
        self.desired.map(|desired| &desired.restart)
    }
}

impl LearnerGroup {
    /// A group of a coordinator that starts at `now`.
    pub fn new(size: GroupSize, now: Now) -> Self {
        Self { size, supervisors: Supervisors::default(), since: now, backoff_until: None }
    }

    /// The groups of these sizes, by name.
    pub fn by_name(sizes: &BTreeMap<String, GroupSize>, now: Now) -> BTreeMap<String, Self> {
        sizes.iter().map(|(name, size)| (name.clone(), Self::new(*size, now))).collect()
    }

    /// Extends deadlines by a time in which the coordinator processed no requests.
    pub fn extend_deadlines(&mut self, time: Now) {
        self.supervisors.extend_deadlines(time);
        self.since = self.since.saturating_add(time);
    }

    /// Stores the report of a supervisor. Returns false if its name belongs to another process.
    pub fn report(
        &mut self,
        record: &mut GroupRecord,
        (name, report): (&str, SupervisorReport),
        conditions: &Conditions<'_>,
        now: Now,
    ) -> bool {
        let failure = failure_of(name, &report).filter(|_| report.attempt == Some(record.attempt));
        let known = record
            .stage
            .layout()
            .and_then(|layout| layout.members.iter().find(|member| member.name == name));
        if !self.supervisors.report(name, report, known, self.since, now) {
            return false;
        }
        if let Some(failure) = failure {
            let (policy, is_done) = (conditions.restart_policy(), conditions.is_done);
            learner_failed(record, name, failure, policy, is_done);
        }
        true
    }

    /// Advances the group as time passes.
    pub fn tick(
        &mut self,
        record: &mut GroupRecord,
        conditions: &Conditions<'_>,
        now: Now,
    ) -> Change {
        self.supervisors.forget(now);
        match record.stage.clone() {
            Stage::Forming { .. } => self.form(record, conditions, now),
            Stage::Running(layout) => self.watch(record, layout, conditions, now),
            Stage::Stopping { layout, lost, .. } => {
                self.settle(record, &layout, lost, conditions, now)
            }
            Stage::Drained if !conditions.is_draining() && conditions.desired.is_some() => {
                start_new_attempt(record, conditions, false)
            }
            Stage::Drained | Stage::Finished | Stage::Failed => Change::None,
        }
    }

    fn form(&mut self, record: &mut GroupRecord, conditions: &Conditions<'_>, now: Now) -> Change {
        if conditions.is_draining() {
            record.stage = Stage::Drained;
            return Change::None;
        }
        if conditions.desired.is_none()
            || !conditions.may_form
            || self.backoff_until.is_some_and(|until| now < until)
        {
            return Change::None;
        }
        let Some(layout) = self.layout(conditions, now) else { return Change::None };
        self.backoff_until = None;
        self.since = now;
        record.stage = Stage::Running(layout);
        Change::Formed
    }

    /// Assigns ranks by name to the first live supervisors, if there are enough of them with enough
    /// processes.
    fn layout(&self, conditions: &Conditions<'_>, now: Now) -> Option<Layout> {
        let GroupSize { supervisors, processes } = self.size;
        let alive = self.supervisors.all(now).into_iter().filter(|(_, alive, report)| {
            *alive && !report.terminating && report.processes >= processes
        });
        let chosen: Vec<_> = alive.take(supervisors as usize).collect();
        let (_, _, first) = chosen.first().filter(|_| chosen.len() == supervisors as usize)?;
        let member =
            |(index, (name, _, report)): (usize, &(&str, bool, &SupervisorReport))| Member {
                name: (*name).to_owned(),
                instance: report.instance.clone(),
                started_at: report.started_at,
                uid: report.uid.clone(),
                first_rank: (index as u32).saturating_mul(processes),
            };
        Some(Layout {
            members: chosen.iter().enumerate().map(member).collect(),
            world_size: supervisors.saturating_mul(processes),
            rendezvous_address: first.address.clone(),
            rendezvous_port: first.rendezvous_port,
            restore: conditions.restore.clone(),
        })
    }

    fn watch(
        &mut self,
        record: &mut GroupRecord,
        layout: Layout,
        conditions: &Conditions<'_>,
        now: Now,
    ) -> Change {
        let standings = self.standings(&layout, now);
        let attempt = Some(record.attempt);
        let finished = |member: &Member| {
            self.supervisors
                .get(&member.name)
                .is_some_and(|report| report.attempt == attempt && !report.learners.is_empty())
        };
        let exited =
            layout.members.iter().zip(&standings).all(|(member, standing)| match standing {
                Standing::Lost => true,
                Standing::Alive { running } => *running == 0 && finished(member),
                Standing::Quiet => false,
            });
        let lost = standings.contains(&Standing::Lost);
        let timeout = conditions.restart_policy().map(|policy| policy.hang_timeout_seconds);
        let hung = || timeout.and_then(|timeout| self.hung(&layout, record.attempt, timeout));
        if exited && conditions.is_done && conditions.may_finish {
            record.stage = Stage::Finished;
        } else if conditions.is_done {
            // The work is done: a lost supervisor has no effect.
            if exited && conditions.is_draining() {
                record.stage = Stage::Drained;
            }
        } else if !lost && let Some(failure) = hung() {
            record.stage =
                Stage::Stopping { layout, failure: Some(failure), lost: false, fatal: false };
        } else if lost {
            record.stage = Stage::Stopping { layout, failure: None, lost: true, fatal: false };
        } else if exited && conditions.is_draining() {
            record.stage = Stage::Drained;
        } else if exited {
            return start_new_attempt(record, conditions, false);
        }
        Change::None
    }

    fn settle(
        &mut self,
        record: &mut GroupRecord,
        layout: &Layout,
        lost_before: bool,
        conditions: &Conditions<'_>,
        now: Now,
    ) -> Change {
        let standings = self.standings(layout, now);
        let lost_now =
            lost_before || standings.contains(&Standing::Lost) || self.any_terminating(layout);
        if let Stage::Stopping { lost, .. } = &mut record.stage {
            *lost = lost_now;
        }
        let gone = standings
            .iter()
            .all(|standing| matches!(standing, Standing::Lost | Standing::Alive { running: 0 }));
        if gone { self.verdict(record, conditions, now) } else { Change::None }
    }

    fn verdict(
        &mut self,
        record: &mut GroupRecord,
        conditions: &Conditions<'_>,
        now: Now,
    ) -> Change {
        let Stage::Stopping { failure, lost, fatal, .. } = record.stage.clone() else {
            return Change::None;
        };
        if let Some(failure) = failure.filter(|_| fatal || !lost) {
            let (action, failure) = consequence(conditions.restart_policy(), &failure);
            record.last_failure = Some(failure);
            let counted = action != FailureAction::RestartAndIgnoreMaxRestarts;
            let policy = conditions.restart_policy();
            let max_restarts = policy.map_or(0, |policy| policy.max_restarts);
            if fatal || (counted && record.restarts >= max_restarts) {
                record.stage = Stage::Failed;
                return Change::None;
            }
            record.restarts = record.restarts.saturating_add(u32::from(counted));
            let draw = backoff::draw(conditions.incarnation, record.attempt);
            self.backoff_until = policy.map(|policy| {
                let wait = backoff::wait(policy, record.restarts_without_progress, draw);
                now.saturating_add(wait)
            });
            record.restarts_without_progress = record.restarts_without_progress.saturating_add(1);
        }
        start_new_attempt(record, conditions, true)
    }

    fn standings(&self, layout: &Layout, now: Now) -> Vec<Standing> {
        layout
            .members
            .iter()
            .map(|member| self.supervisors.standing(member, self.since, now))
            .collect()
    }

    /// State of each supervisor.
    pub fn supervisor_states(&self, record: &GroupRecord, now: Now) -> Vec<SupervisorState> {
        let current = Some(record.attempt);
        let state = |(name, alive, report): (&str, bool, &SupervisorReport)| SupervisorState {
            name: name.to_owned(),
            alive,
            learners: if report.attempt == current { supervisors::running(report) } else { 0 },
            uid: report.uid.clone(),
            gpu_fault: report.gpu_faults.last().cloned(),
        };
        self.supervisors.all(now).into_iter().map(state).collect()
    }
}

impl GroupRecord {
    /// Order for a supervisor in the current stage.
    pub fn order(&self, name: &str) -> Order {
        match &self.stage {
            Stage::Running(layout) => {
                match layout.members.iter().find(|member| member.name == name) {
                    Some(member) => Order::Run(Group {
                        attempt: self.attempt,
                        first_rank: member.first_rank,
                        world_size: layout.world_size,
                        rendezvous_address: layout.rendezvous_address.clone(),
                        rendezvous_port: layout.rendezvous_port,
                        restore: layout.restore.clone(),
                    }),
                    None => Order::Stop,
                }
            }
            Stage::Forming { .. } | Stage::Stopping { .. } | Stage::Drained => Order::Stop,
            Stage::Finished | Stage::Failed => Order::Exit,
        }
    }
}

fn start_new_attempt(
    record: &mut GroupRecord,
    conditions: &Conditions<'_>,
    restarting: bool,
) -> Change {
    record.attempt = record.attempt.saturating_add(1);
    record.stage =
        if conditions.is_draining() { Stage::Drained } else { Stage::Forming { restarting } };
    Change::NewAttempt
}

#[cfg(test)]
mod tests;
