//! Choice of the groups of a batch.
//!
//! ```text
//!  B = 2, η = 1        step 1      step 2          batches
//!  Data                0  1        2  3            0 1 │ 2 3      0 is slow: both wait
//!  Finished            0  1        2  3  4  5      1 2 │ 0 3 …    0 has until step 1 + η
//! ```
//!
//! With `batchOrder: Finished`, a batch is the first B groups that finished, unless it would leave
//! more groups than the batches up to their last step have room for: then it has groups of those
//! instead, and waits for them. Admission leaves room for every group up to the step that it is
//! for, and a batch leaves room for what it passes over, so that no group is in a batch after its
//! last step.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rljob_crds::rollout::BatchOrder;

use super::{Batch, Ledger, Next, Outcome, State};

impl Ledger {
    fn size(&self) -> usize {
        self.rule.batch_size as usize
    }

    /// Judges groups in loader order until a batch is complete. Returns a group that is too old.
    pub(super) fn judge_in_order(&mut self) -> Option<Next> {
        while self.accepted < self.size() {
            match self.groups.get(self.scanned)?.state {
                State::UnderWay => return None,
                State::Finished { outcome, .. } => {
                    let rejects = |oldest| self.rule.rejects(self.step, oldest);
                    if !self.drops(outcome) && outcome.oldest.is_some_and(rejects) {
                        return self.again(self.scanned);
                    }
                    self.judge(self.scanned);
                }
                State::Skipped | State::Accepted { .. } | State::Dropped | State::Taken => {}
            }
            self.scanned = self.scanned.saturating_add(1);
        }
        None
    }

    fn drops(&self, outcome: Outcome) -> bool {
        outcome.oldest.is_none() || outcome.droppable && self.dropped < self.drops
    }

    /// Accepts or drops a finished group.
    pub(super) fn judge(&mut self, index: usize) {
        let Some(State::Finished { outcome, certain }) =
            self.groups.get(index).map(|group| group.state)
        else {
            return;
        };
        let state = match outcome.oldest {
            Some(oldest) if !self.drops(outcome) => {
                self.capped |= outcome.droppable && self.drops > 0;
                self.accepted = self.accepted.saturating_add(1);
                self.turns = self.turns.saturating_add(1);
                State::Accepted { oldest, turn: self.turns }
            }
            oldest => {
                let count = if oldest.is_some() { &mut self.dropped } else { &mut self.empty };
                *count = count.saturating_add(1);
                self.open = self.open.saturating_sub(usize::from(!certain));
                State::Dropped
            }
        };
        if let Some(group) = self.groups.get_mut(index) {
            group.state = state;
        }
    }

    /// The judged groups, if they are a batch.
    pub(super) fn accepted_in_order(&self) -> Option<Vec<usize>> {
        let is_accepted = |index: &usize| {
            let group = self.groups.get(*index);
            group.is_some_and(|group| matches!(group.state, State::Accepted { .. }))
        };
        (self.accepted >= self.size()).then(|| (0..self.scanned).filter(is_accepted).collect())
    }

    /// The groups of a batch by the order in which they finished, if it does not wait.
    pub(super) fn finished_first(&mut self) -> Option<Vec<usize>> {
        let is_judged = |index: usize| {
            self.groups.get(index).is_some_and(|group| group.state != State::UnderWay)
        };
        while is_judged(self.scanned) {
            self.scanned = self.scanned.saturating_add(1);
        }
        if self.accepted < self.size() {
            return None;
        }
        let (mut finished, mut chosen) = (BinaryHeap::new(), Vec::with_capacity(self.size()));
        // Groups of no batch up to the current one.
        let mut groups = 0_usize;
        for (index, group) in self.groups.iter().enumerate() {
            match group.state {
                State::Accepted { turn, .. } => finished.push(Reverse((turn, index))),
                State::UnderWay | State::Finished { .. } => {}
                State::Skipped | State::Dropped | State::Taken => continue,
            }
            groups = groups.saturating_add(1);
            let later = group.last.saturating_sub(self.step) as usize;
            let now = groups.saturating_sub(later.saturating_mul(self.size()));
            while chosen.len() < now {
                chosen.push(finished.pop()?.0.1);
            }
        }
        while chosen.len() < self.size() {
            chosen.push(finished.pop()?.0.1);
        }
        Some(chosen)
    }

    pub(super) fn is_too_old(&self, index: usize) -> bool {
        match self.groups.get(index).map(|group| group.state) {
            Some(State::Accepted { oldest, .. }) => self.rule.rejects(self.step, oldest),
            _ => false,
        }
    }

    /// Samples a finished group again.
    pub(super) fn again(&mut self, index: usize) -> Option<Next> {
        let group = self.groups.get_mut(index)?;
        if matches!(group.state, State::Accepted { .. }) {
            self.accepted = self.accepted.saturating_sub(1);
        }
        group.state = State::UnderWay;
        self.scanned = self.scanned.min(index);
        let step = match self.rule.order {
            BatchOrder::Data => self.step,
            BatchOrder::Finished => group.last.saturating_sub(self.rule.slack()).max(self.step),
        };
        Some(Next::Again { position: group.position, step })
    }

    /// Makes a batch of the chosen groups.
    pub(super) fn close(&mut self, chosen: &[usize]) -> Batch {
        for index in chosen {
            if let Some(group) = self.groups.get_mut(*index) {
                group.state = State::Taken;
            }
        }
        let is_used = |state| matches!(state, State::Taken | State::Dropped);
        let end = self.groups.iter().rposition(|group| is_used(group.state));
        let (mut positions, mut skipped, mut rest) = (Vec::new(), 0_u32, VecDeque::new());
        for group in self.groups.drain(..end.map_or(0, |last| last.saturating_add(1))) {
            self.next_position = self.next_position.max(group.position.saturating_add(1));
            match group.state {
                State::Taken => positions.push(group.position),
                State::Dropped => {}
                State::Skipped => skipped = skipped.saturating_add(1),
                State::UnderWay | State::Finished { .. } | State::Accepted { .. } => {
                    rest.push_back(group);
                }
            }
        }
        rest.append(&mut self.groups);
        self.groups = rest;
        let open = self.groups.iter().map(|group| group.position);
        let open = open.take_while(|position| *position < self.next_position);
        let empty = std::mem::take(&mut self.empty);
        let batch = Batch {
            step: self.step,
            dropped: std::mem::take(&mut self.dropped).saturating_add(empty),
            empty,
            skipped,
            capped: std::mem::take(&mut self.capped),
            next_position: self.next_position,
            passed_over: open.chain(self.passed_over.iter().copied()).collect(),
            positions,
        };
        self.open = self.open.saturating_sub(chosen.len());
        self.accepted = self.accepted.saturating_sub(chosen.len());
        self.scanned = 0;
        self.step = self.step.saturating_add(1);
        batch
    }
}

#[cfg(test)]
mod tests;
