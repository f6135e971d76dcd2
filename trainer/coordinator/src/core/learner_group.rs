//! Learner-group lifecycle: forming, running, stopping, the verdict on failures, and the orders to
//! supervisors.
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

use rljob_crds::failure_policy::{FailureAction, FailureRole, first_match, rule_name};
use rljob_crds::names::{EXIT_LEARNER_INPUT, EXIT_LEARNER_PEER};
use rljob_protocol::desired::RestartPolicy;
use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::{Group, Order, Restore, SupervisorReport};
use rljob_protocol::version::Version;

use super::record::{Layout, Member};
use super::supervisors::{self, Standing};
use super::{Now, Rejection, Run, Stage, backoff};

/// Reason of failures by an invalid model or checkpoint, which a restart cannot repair.
pub const LEARNER_INPUT: &str = "LearnerInput";

impl Run {
    /// Processes the report of a supervisor and returns its order.
    pub fn handle_report(
        &mut self,
        name: &str,
        report: SupervisorReport,
        now: Now,
    ) -> Result<Order, Rejection> {
        let failure =
            failure_of(name, &report).filter(|_| report.attempt == Some(self.record.attempt));
        let known = match &self.record.stage {
            Stage::Running(layout) | Stage::Stopping { layout, .. } => {
                layout.members.iter().find(|member| member.name == name)
            }
            _ => None,
        };
        if !self.supervisors.report(name, report, known, self.since, now) {
            return Err(Rejection::Replaced(name.to_owned()));
        }
        if let Some(failure) = failure {
            self.learner_failed(name, failure);
        }
        self.tick(now);
        Ok(self.order(name))
    }

    /// Advances the group as time passes.
    pub fn tick(&mut self, now: Now) {
        self.supervisors.forget(now);
        if !self.settings.learners && self.tick_without_learners() {
            return;
        }
        match self.record.stage.clone() {
            Stage::Forming { .. } => self.form(now),
            Stage::Running(layout) => self.watch(layout, now),
            Stage::Stopping { layout, lost, .. } => self.settle(&layout, lost, now),
            Stage::Drained if !self.draining() && self.desired.is_some() => {
                self.start_new_attempt(false);
            }
            Stage::Drained | Stage::Finished | Stage::Failed => {}
        }
    }

    /// Fails the run for a reason that a restart cannot repair.
    pub fn fail(&mut self, failure: LearnerFailure) {
        let stage = match self.record.stage.clone() {
            Stage::Running(layout) | Stage::Stopping { layout, .. } => {
                Stage::Stopping { layout, failure: Some(failure.clone()), lost: false, fatal: true }
            }
            Stage::Forming { .. } | Stage::Drained => Stage::Failed,
            Stage::Finished | Stage::Failed => return,
        };
        self.record.last_failure = Some(failure);
        self.record.stage = stage;
    }

    /// Order for a supervisor in the current state.
    pub fn order(&self, name: &str) -> Order {
        if self.desired.is_none() {
            return Order::Wait;
        }
        match &self.record.stage {
            Stage::Running(layout) => {
                match layout.members.iter().find(|member| member.name == name) {
                    Some(member) => Order::Run(Group {
                        attempt: self.record.attempt,
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

    fn learner_failed(&mut self, name: &str, failure: LearnerFailure) {
        let fails = self.consequence(&failure).0 == FailureAction::FailJob;
        match &mut self.record.stage {
            Stage::Running(layout)
                if !self.record.exported
                    && layout.members.iter().any(|member| member.name == name) =>
            {
                self.record.stage = Stage::Stopping {
                    layout: layout.clone(),
                    failure: Some(failure),
                    lost: false,
                    fatal: fails,
                };
            }
            // A rank that lost its peer may be heard before the peer that says why.
            Stage::Stopping { failure: first, fatal, .. }
                if first
                    .as_ref()
                    .is_none_or(|first| lost_its_peer(first) && !lost_its_peer(&failure))
                    || fails =>
            {
                *fatal |= fails;
                *first = Some(failure);
            }
            _ => {}
        }
    }

    fn form(&mut self, now: Now) {
        if self.draining() {
            self.record.stage = Stage::Drained;
            return;
        }
        if self.desired.is_none()
            || !self.verified
            || self.backoff_until.is_some_and(|until| now < until)
        {
            return;
        }
        let Some(layout) = self.layout(now) else { return };
        self.backoff_until = None;
        self.position = None;
        self.checkpoint_ordered = None;
        self.export_ordered = None;
        self.ordered.clear();
        self.publication = None;
        self.since = now;
        self.record.stage = Stage::Running(layout);
    }

    /// Assigns ranks by name to the first live supervisors, if there are enough of them with enough
    /// processes.
    fn layout(&self, now: Now) -> Option<Layout> {
        let alive = self.supervisors.all(now).into_iter().filter(|(_, alive, report)| {
            *alive && !report.terminating && report.processes >= self.settings.processes
        });
        let chosen: Vec<_> = alive.take(self.settings.supervisors as usize).collect();
        let (_, _, first) =
            chosen.first().filter(|_| chosen.len() == self.settings.supervisors as usize)?;
        let member =
            |(index, (name, _, report)): (usize, &(&str, bool, &SupervisorReport))| Member {
                name: (*name).to_owned(),
                instance: report.instance.clone(),
                started_at: report.started_at,
                uid: report.uid.clone(),
                first_rank: (index as u32).saturating_mul(self.settings.processes),
            };
        Some(Layout {
            members: chosen.iter().enumerate().map(member).collect(),
            world_size: self.settings.supervisors.saturating_mul(self.settings.processes),
            rendezvous_address: first.address.clone(),
            rendezvous_port: first.rendezvous_port,
            restore: self.restore(),
        })
    }

    fn watch(&mut self, layout: Layout, now: Now) {
        let standings = self.standings(&layout, now);
        let finished = |run: &Self, member: &Member| {
            run.supervisors
                .get(&member.name)
                .is_some_and(|r| r.attempt == Some(run.record.attempt) && !r.learners.is_empty())
        };
        let exited =
            layout.members.iter().zip(&standings).all(|(member, standing)| match standing {
                Standing::Lost => true,
                Standing::Alive { running } => *running == 0 && finished(self, member),
                Standing::Quiet => false,
            });
        let lost = standings.contains(&Standing::Lost);
        if exited && self.record.exported && self.record.evaluations.is_empty() {
            self.record.stage = Stage::Finished;
        } else if self.record.exported {
            // The model is exported: a lost supervisor has no effect.
            if exited && self.draining() {
                self.record.stage = Stage::Drained;
            }
        } else if !lost && let Some(failure) = self.hung(&layout) {
            self.record.stage =
                Stage::Stopping { layout, failure: Some(failure), lost: false, fatal: false };
        } else if lost {
            self.record.stage = Stage::Stopping { layout, failure: None, lost: true, fatal: false };
        } else if exited && self.draining() {
            self.record.stage = Stage::Drained;
        } else if exited {
            self.start_new_attempt(false);
        }
    }

    fn settle(&mut self, layout: &Layout, lost_before: bool, now: Now) {
        let standings = self.standings(layout, now);
        let lost_now =
            lost_before || standings.contains(&Standing::Lost) || self.any_terminating(layout);
        if let Stage::Stopping { lost, .. } = &mut self.record.stage {
            *lost = lost_now;
        }
        let gone = standings
            .iter()
            .all(|standing| matches!(standing, Standing::Lost | Standing::Alive { running: 0 }));
        if gone {
            self.verdict(now);
        }
    }

    fn verdict(&mut self, now: Now) {
        let Stage::Stopping { failure, lost, fatal, .. } = self.record.stage.clone() else {
            return;
        };
        if let Some(failure) = failure.filter(|_| fatal || !lost) {
            let (action, failure) = self.consequence(&failure);
            self.record.last_failure = Some(failure);
            let counted = action != FailureAction::RestartAndIgnoreMaxRestarts;
            if fatal
                || (counted
                    && self.record.restarts
                        >= self.restart_policy().map_or(0, |policy| policy.max_restarts))
            {
                self.record.stage = Stage::Failed;
                return;
            }
            self.record.restarts = self.record.restarts.saturating_add(u32::from(counted));
            let draw = backoff::draw(self.incarnation, self.record.attempt);
            self.backoff_until = self.restart_policy().map(|policy| {
                now.saturating_add(backoff::wait(
                    policy,
                    self.record.restarts_without_progress,
                    draw,
                ))
            });
            let without_progress = &mut self.record.restarts_without_progress;
            *without_progress = without_progress.saturating_add(1);
        }
        self.start_new_attempt(true);
    }

    /// Action of the first matching rule, whose path is added to the message. Without a match,
    /// invalid input fails the run, and other failures are counted restarts.
    fn consequence(&self, failure: &LearnerFailure) -> (FailureAction, LearnerFailure) {
        let rules = self.restart_policy().map(|policy| policy.rules.as_slice()).unwrap_or_default();
        match first_match(rules, FailureRole::Trainer, &failure.reason, failure.exit_code) {
            Some((index, action)) => {
                let message = format!("{} ({}: {action:?})", failure.message, rule_name(index));
                (action, LearnerFailure { message, ..failure.clone() })
            }
            None if failure.exit_code == Some(EXIT_LEARNER_INPUT) => {
                (FailureAction::FailJob, failure.clone())
            }
            None => (FailureAction::Restart, failure.clone()),
        }
    }

    fn restart_policy(&self) -> Option<&RestartPolicy> {
        self.desired.as_ref().map(|desired| &desired.restart)
    }

    fn start_new_attempt(&mut self, restarting: bool) {
        self.record.attempt = self.record.attempt.saturating_add(1);
        self.verified = self.facts.checkpoints.is_empty();
        self.record.stage =
            if self.draining() { Stage::Drained } else { Stage::Forming { restarting } };
        self.position = None;
        self.publication = None;
    }

    fn standings(&self, layout: &Layout, now: Now) -> Vec<Standing> {
        layout
            .members
            .iter()
            .map(|member| self.supervisors.standing(member, self.since, now))
            .collect()
    }

    /// Checkpoint that a group starts from: the newest one, or that of `restoreFrom` if the run has
    /// none.
    fn restore(&self) -> Option<Restore> {
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

/// Exit codes of learners that are not the first cause if another failure is known.
fn lost_its_peer(failure: &LearnerFailure) -> bool {
    failure.exit_code == Some(EXIT_LEARNER_PEER)
}

fn failure_of(name: &str, report: &SupervisorReport) -> Option<LearnerFailure> {
    let (code, log_tail) = supervisors::failed(report)?;
    let (reason, how) = match code {
        EXIT_LEARNER_INPUT => (LEARNER_INPUT, format!("exited with code {code}")),
        128.. => ("LearnerKilled", format!("was killed by signal {}", code.saturating_sub(128))),
        _ => ("LearnerExited", format!("exited with code {code}")),
    };
    let tail = log_tail.trim().replace('\n', " | ");
    let message = if tail.is_empty() {
        format!("a learner of {name} {how}")
    } else {
        format!("a learner of {name} {how}: {tail}")
    };
    Some(LearnerFailure {
        reason: reason.to_owned(),
        message,
        supervisor: Some(name.to_owned()),
        exit_code: Some(code),
    })
}

#[cfg(test)]
mod tests;
