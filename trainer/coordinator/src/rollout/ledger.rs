//! Ledger of loader positions: groups in progress, accepted, dropped. Pure.
//!
//! ```text
//!  first          scanned                          first + groups.len()
//!    │ accepted, dropped │ in progress, or finished early │ admitted next
//!    └── of step `step` ─┘
//! ```
//!
//! Groups are judged in loader order, so that a batch is a function of the data and the
//! completions: the first B groups that are not dropped. A group without samples is always dropped.
//! Of the groups without reward variance, a step drops at most `drops` and keeps all later ones.
//! The slot of a group that will certainly be dropped is given to the next position at once; if
//! that depends on earlier groups, the slot waits for them, so that accepted groups and groups in
//! progress never exceed the admitted number.

use std::collections::VecDeque;

use crate::core::admission::Admission;

/// Result of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether its rewards have zero variance.
    pub droppable: bool,
    /// Steps of the oldest weights that any of its tokens was sampled with; `None` if all samples
    /// were rejected.
    pub oldest: Option<u32>,
}

/// Next action of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A batch is complete.
    Batch(Batch),
    /// The group at this position is too old for its step and is sampled again.
    Again {
        position: u64,
        /// The step it is for.
        step: u32,
    },
}

/// The groups of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub step: u32,
    /// Positions of its groups, in order.
    pub positions: Vec<u64>,
    /// Groups dropped on the way: without reward variance, or without samples.
    pub dropped: u32,
    /// Positions skipped on the way.
    pub skipped: u32,
    /// Whether groups were kept because the step may drop no more.
    pub capped: bool,
    /// The first position that is not used up.
    pub next_position: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    UnderWay,
    /// Not sampled.
    Skipped,
    /// `certain`: it will be dropped, whatever becomes of those before it.
    Finished {
        outcome: Outcome,
        certain: bool,
    },
}

/// Groups between the newest fixed batch and the last admitted position.
#[derive(Clone, Debug)]
pub struct Ledger {
    rule: Admission,
    /// Most groups dropped a step.
    drops: u32,
    step: u32,
    first: u64,
    groups: VecDeque<Group>,
    scanned: usize,
    accepted: Vec<u64>,
    dropped: u32,
    /// Dropped groups without samples.
    empty: u32,
    skipped: u32,
    /// Positions skipped since the newest one that was admitted.
    skipped_in_a_row: u64,
    capped: bool,
    certain: usize,
}

impl Ledger {
    /// A ledger that continues after `fixed_step` at `next_position`. `attempts`: prompts sampled
    /// for a step are at most so many times the batch.
    pub fn new(rule: Admission, attempts: u32, fixed_step: u32, next_position: u64) -> Self {
        Self {
            rule,
            drops: rule.batch_size.saturating_mul(attempts.saturating_sub(1)),
            step: fixed_step.saturating_add(1),
            first: next_position,
            groups: VecDeque::new(),
            scanned: 0,
            accepted: Vec::new(),
            dropped: 0,
            empty: 0,
            skipped: 0,
            skipped_in_a_row: 0,
            capped: false,
            certain: 0,
        }
    }

    /// Next step whose batch is fixed.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Positions below it are judged: skipped, dropped, or accepted for a batch.
    pub fn judged(&self) -> u64 {
        self.first.saturating_add(self.scanned as u64)
    }

    /// The next position if a step up to `through` has room for it, and the last step it can be
    /// for.
    pub fn upcoming(&self, through: u32) -> Option<(u64, u32)> {
        let undecided = self.groups.len().saturating_sub(self.scanned).saturating_sub(self.certain);
        let admitted = self.accepted.len().saturating_add(undecided);
        let batches = admitted.checked_div(self.rule.batch_size as usize).unwrap_or(admitted);
        let step = self.step.saturating_add(batches as u32);
        let position = self.first.saturating_add(self.groups.len() as u64);
        (step <= through).then_some((position, step))
    }

    /// Samples the next position.
    pub fn admit(&mut self) {
        self.groups.push_back(Group::UnderWay);
        self.skipped_in_a_row = 0;
    }

    /// Passes over the next position.
    pub fn skip(&mut self) {
        self.groups.push_back(Group::Skipped);
        self.certain = self.certain.saturating_add(1);
        self.skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
    }

    /// Positions skipped since the newest one that was admitted. Batches end with an admitted
    /// position, so that a restarted run counts the same.
    pub fn skipped_in_a_row(&self) -> u64 {
        self.skipped_in_a_row
    }

    /// The group at a position is finished.
    pub fn finish(&mut self, position: u64, outcome: Outcome) {
        let Some(index) =
            position.checked_sub(self.first).and_then(|index| usize::try_from(index).ok())
        else {
            return;
        };
        let ahead = index.saturating_sub(self.scanned);
        let within_limit = ahead.saturating_add(self.dropped as usize) < self.drops as usize;
        let certain = index >= self.scanned
            && (outcome.oldest.is_none() || outcome.droppable && within_limit);
        if let Some(group @ Group::UnderWay) = self.groups.get_mut(index) {
            *group = Group::Finished { outcome, certain };
            self.certain = self.certain.saturating_add(usize::from(certain));
        }
    }

    /// Next action. Call it until it returns `None`.
    pub fn take(&mut self) -> Option<Next> {
        while self.accepted.len() < self.rule.batch_size as usize {
            let position = self.judged();
            let group = self.groups.get_mut(self.scanned)?;
            let (outcome, certain) = match *group {
                Group::UnderWay => return None,
                Group::Skipped => {
                    self.skipped = self.skipped.saturating_add(1);
                    self.certain = self.certain.saturating_sub(1);
                    self.scanned = self.scanned.saturating_add(1);
                    continue;
                }
                Group::Finished { outcome, certain } => (outcome, certain),
            };
            if outcome.oldest.is_none() {
                self.empty = self.empty.saturating_add(1);
                self.certain = self.certain.saturating_sub(usize::from(certain));
            } else if outcome.droppable && self.dropped < self.drops {
                self.dropped = self.dropped.saturating_add(1);
                self.certain = self.certain.saturating_sub(usize::from(certain));
            } else if outcome.oldest.is_some_and(|oldest| self.rule.rejects(self.step, oldest)) {
                *group = Group::UnderWay;
                return Some(Next::Again { position, step: self.step });
            } else {
                self.capped |= outcome.droppable && self.drops > 0;
                self.accepted.push(position);
            }
            self.scanned = self.scanned.saturating_add(1);
        }
        self.groups.drain(..self.scanned);
        self.first = self.first.saturating_add(self.scanned as u64);
        let batch = Batch {
            step: self.step,
            positions: std::mem::take(&mut self.accepted),
            dropped: std::mem::take(&mut self.dropped)
                .saturating_add(std::mem::take(&mut self.empty)),
            skipped: std::mem::take(&mut self.skipped),
            capped: std::mem::take(&mut self.capped),
            next_position: self.first,
        };
        self.scanned = 0;
        self.step = self.step.saturating_add(1);
        Some(Next::Batch(batch))
    }
}

#[cfg(test)]
mod tests;
