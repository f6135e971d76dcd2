//! Ledger of loader positions: groups in progress, accepted, dropped. Pure.
//!
//! ```text
//!  passed over │ next_position of the newest batch
//!    3     7   │ 12  13  14  15  16 │ 17 …
//!    └──────── groups, in order ────┘ admitted next
//!
//!  under way ─▶ finished ─▶ accepted ─▶ in a batch
//!                   └─▶ dropped         skipped: not sampled
//! ```
//!
//! With `batchOrder: Data`, groups are judged in loader order, so that a batch is a function of the
//! data and the completions: the first B groups that are not dropped. With `Finished`, groups are
//! judged as they finish ([`choice`]). A group without samples is always dropped. Of the groups
//! without reward variance, a step drops at most `drops` and keeps all later ones. The slot of a
//! group that will certainly be dropped is given to the next position at once; if that depends on
//! earlier groups, the slot waits for them, so that accepted groups and groups in progress never
//! exceed the admitted number.

use std::collections::VecDeque;

use rljob_crds::rollout::BatchOrder;

use crate::core::admission::Admission;

mod choice;

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
    /// Those of them without samples.
    pub empty: u32,
    /// Positions skipped on the way.
    pub skipped: u32,
    /// Whether groups were kept because the step may drop no more.
    pub capped: bool,
    /// The first position after all that are used up.
    pub next_position: u64,
    /// Positions below it that are not used up, in order.
    pub passed_over: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    /// Not sampled.
    Skipped,
    /// `certain`: it will be dropped, whatever becomes of those before it.
    Finished {
        outcome: Outcome,
        certain: bool,
    },
    /// `turn`: number of groups that were accepted before it.
    Accepted {
        oldest: u32,
        turn: u64,
    },
    Dropped,
    /// In the batch that is being closed.
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    position: u64,
    /// Last step whose batch may have it.
    last: u32,
    state: State,
}

/// Groups that are in no batch yet, up to the last admitted position.
#[derive(Clone, Debug)]
pub struct Ledger {
    rule: Admission,
    /// Most groups without reward variance dropped a step.
    drops: u32,
    step: u32,
    /// Positions passed over by an earlier process, which are admitted first.
    passed_over: VecDeque<u64>,
    /// The first position that was never admitted or skipped.
    next: u64,
    /// The first position after all that are used up.
    next_position: u64,
    /// By position.
    groups: VecDeque<Group>,
    /// Number of groups at the front that are judged.
    scanned: usize,
    /// Groups that are, or may be, for a batch.
    open: usize,
    accepted: usize,
    /// Step of the newest admitted group.
    newest_step: u32,
    turns: u64,
    dropped: u32,
    /// Dropped groups without samples.
    empty: u32,
    /// Positions skipped since the newest one that was admitted.
    skipped_in_a_row: u64,
    capped: bool,
}

impl Ledger {
    /// A ledger that continues after `fixed_step` at `next_position`. `attempts`: prompts sampled
    /// for a step are at most so many times the batch.
    pub fn new(rule: Admission, attempts: u32, fixed_step: u32, next_position: u64) -> Self {
        Self {
            rule,
            drops: rule.batch_size.saturating_mul(attempts.saturating_sub(1)),
            step: fixed_step.saturating_add(1),
            passed_over: VecDeque::new(),
            next: next_position,
            next_position,
            groups: VecDeque::new(),
            scanned: 0,
            open: 0,
            accepted: 0,
            newest_step: 0,
            turns: 0,
            dropped: 0,
            empty: 0,
            skipped_in_a_row: 0,
            capped: false,
        }
    }

    /// Continues with the positions that the batches so far passed over, in order. Each is for the
    /// first batch that has room for it, and no batch passes over it again: it had room until then.
    #[must_use]
    pub fn with_passed_over(self, positions: Vec<u64>) -> Self {
        Self { passed_over: positions.into(), ..self }
    }

    /// Next step whose batch is fixed.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Positions below it are judged: skipped, dropped, or accepted for a batch.
    pub fn judged(&self) -> u64 {
        self.groups.get(self.scanned).map_or_else(|| self.upcoming_position(), |of| of.position)
    }

    fn upcoming_position(&self) -> u64 {
        self.passed_over.front().copied().unwrap_or(self.next)
    }

    /// The next position if a step up to `through` has room for it, and the last step it can be
    /// for; with `batchOrder: Finished`, the step before the ones that may pass over it.
    pub fn upcoming(&self, through: u32) -> Option<(u64, u32)> {
        let step = self.upcoming_step();
        (step <= through).then(|| (self.upcoming_position(), step))
    }

    fn upcoming_step(&self) -> u32 {
        let batches = self.open.checked_div(self.rule.batch_size as usize).unwrap_or(self.open);
        let step = self.step.saturating_add(batches as u32);
        match self.rule.order {
            BatchOrder::Data => step,
            // The last steps of groups are in the order of positions.
            BatchOrder::Finished => step.max(self.newest_step),
        }
    }

    /// Samples the next position.
    pub fn admit(&mut self) {
        let step = self.upcoming_step();
        let (position, slack) = match self.passed_over.pop_front() {
            Some(position) => (position, 0),
            None => (self.take_next(), self.rule.slack()),
        };
        let last = step.saturating_add(slack);
        self.groups.push_back(Group { position, last, state: State::UnderWay });
        self.open = self.open.saturating_add(1);
        self.newest_step = step;
        self.skipped_in_a_row = 0;
    }

    /// Passes over the next position, which was not sampled before.
    pub fn skip(&mut self) {
        let (position, last) = (self.take_next(), u32::MAX);
        self.groups.push_back(Group { position, last, state: State::Skipped });
        self.skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
    }

    fn take_next(&mut self) -> u64 {
        let position = self.next;
        self.next = position.saturating_add(1);
        position
    }

    /// Whether the next position may be skipped: at most so many in a row are, and none that a
    /// batch has passed over.
    pub fn may_skip(&self, most: u64) -> bool {
        self.passed_over.is_empty() && self.skipped_in_a_row < most
    }

    /// Positions skipped since the newest one that was admitted. Batches end with an admitted
    /// position, so that a restarted run counts the same.
    pub fn skipped_in_a_row(&self) -> u64 {
        self.skipped_in_a_row
    }

    /// The group at a position is finished.
    pub fn finish(&mut self, position: u64, outcome: Outcome) {
        let Ok(index) = self.groups.binary_search_by_key(&position, |group| group.position) else {
            return;
        };
        let ahead = index.saturating_sub(self.scanned);
        let within_limit = ahead.saturating_add(self.dropped as usize) < self.drops as usize;
        let certain = self.rule.order == BatchOrder::Data
            && (outcome.oldest.is_none() || outcome.droppable && within_limit);
        let Some(group) = self.groups.get_mut(index) else { return };
        if group.state != State::UnderWay {
            return;
        }
        group.state = State::Finished { outcome, certain };
        self.open = self.open.saturating_sub(usize::from(certain));
        if self.rule.order == BatchOrder::Finished {
            self.judge(index);
        }
    }

    /// Next action. Call it until it returns `None`.
    pub fn take(&mut self) -> Option<Next> {
        let chosen = match self.rule.order {
            BatchOrder::Data => match self.judge_in_order() {
                None => self.accepted_in_order()?,
                again => return again,
            },
            BatchOrder::Finished => self.finished_first()?,
        };
        let too_old = chosen.iter().copied().find(|index| self.is_too_old(*index));
        match too_old {
            Some(index) => self.again(index),
            None => Some(Next::Batch(self.close(&chosen))),
        }
    }
}

#[cfg(test)]
mod tests;
