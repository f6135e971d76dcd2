//! Curriculum: decides which loader positions are skipped, by the pass rates that rows had in
//! training. Pure.
//!
//! ```text
//!  position ─▶ row, epoch ─▶ decide ─┬─ sample ─▶ finish (rewards) ─▶ judge ─▶ row's pass rate
//!                                    ├─ skip
//!                                    └─ wait until the row's earlier group is judged
//! ```
//!
//! A decision depends on the groups of the same row at earlier positions alone, all of which are
//! judged by then: it does not depend on the order in which groups finish, and a restarted run
//! makes it again from the journal. With `batchOrder: Finished`, a group is judged when it is
//! finished, but its pass rate is recorded with the batch that uses its position up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rljob_crds::data::{CurriculumSpec, TrainDataset};

use crate::data::Visit;
use crate::persistence::journal::PassRate;

/// What happens to a loader position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Sample,
    Skip,
    /// The row has a group whose pass rate is not known yet.
    Wait,
}

/// Part and row.
type Row = (u32, u64);

/// A group that is sampled and not judged yet.
#[derive(Clone, Debug)]
struct Open {
    visit: Visit,
    /// Rewards of its samples, once it is finished.
    rewards: Vec<f64>,
}

/// Pass rates of the rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Curriculum {
    /// Rule of each part of the data.
    rules: Vec<Option<CurriculumSpec>>,
    /// The newest pass rates of each row, oldest first.
    rows: BTreeMap<Row, VecDeque<PassRate>>,
    /// By position.
    open: BTreeMap<u64, Open>,
    open_rows: BTreeSet<Row>,
    /// Measured pass rates that are not recorded, with the positions of those that they supersede.
    changes: Vec<(PassRate, Vec<u64>)>,
}

/// Changes of the recorded pass rates since the newest batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub measured: Vec<PassRate>,
    /// Positions whose pass rates no decision needs any more.
    pub superseded: Vec<u64>,
}

impl Curriculum {
    /// The curriculum of training data, which continues after `recorded`, the pass rates of the
    /// journal in the order of positions.
    pub fn new(data: &TrainDataset, recorded: Vec<PassRate>) -> Self {
        let rules = data.parts().into_iter().map(|part| part.data.curriculum).collect();
        let mut rows = BTreeMap::<Row, VecDeque<PassRate>>::new();
        for rate in recorded {
            rows.entry((rate.part, rate.row)).or_default().push_back(rate);
        }
        Self { rules, rows, ..Self::default() }
    }

    /// Whether any part has a rule.
    pub fn is_used(&self) -> bool {
        self.rules.iter().any(Option::is_some)
    }

    fn rule(&self, part: u32) -> Option<&CurriculumSpec> {
        self.rules.get(part as usize)?.as_ref()
    }

    /// What happens to a visit of a row, after the decisions for all earlier positions.
    pub fn decide(&self, visit: Visit) -> Decision {
        let Some(rule) = self.rule(visit.part) else { return Decision::Sample };
        let row = (visit.part, visit.row);
        if self.open_rows.contains(&row) {
            return Decision::Wait;
        }
        let Some(rates) = self.rows.get(&row) else { return Decision::Sample };
        let Some(older) = rates.len().checked_sub(rule.groups as usize) else {
            return Decision::Sample;
        };
        let sum = |count: fn(&PassRate) -> u32| {
            rates.iter().skip(older).map(|rate| f64::from(count(rate))).sum::<f64>()
        };
        let rate = sum(|rate| rate.correct) / sum(|rate| rate.samples);
        let measured = rates.back().map_or(0, |rate| rate.epoch);
        let is_recent = visit.epoch.saturating_sub(measured) <= rule.epochs.into();
        let is_within = (rule.min..=rule.max).contains(&rate);
        if is_recent && !is_within { Decision::Skip } else { Decision::Sample }
    }

    /// The row at a position is sampled.
    pub fn sample(&mut self, position: u64, visit: Visit) {
        if self.rule(visit.part).is_some() {
            self.open.insert(position, Open { visit, rewards: Vec::new() });
            self.open_rows.insert((visit.part, visit.row));
        }
    }

    /// The group at a position is finished, or finished again, with these rewards.
    pub fn finish(&mut self, position: u64, rewards: Vec<f64>) {
        if let Some(open) = self.open.get_mut(&position) {
            open.rewards = rewards;
        }
    }

    /// The groups at positions below `judged` are accepted or dropped.
    pub fn judge(&mut self, judged: u64) {
        let later = self.open.split_off(&judged);
        for (position, open) in std::mem::replace(&mut self.open, later) {
            self.measure(position, open);
        }
    }

    /// The group at a position is accepted or dropped.
    pub fn judge_group(&mut self, position: u64) {
        if let Some(open) = self.open.remove(&position) {
            self.measure(position, open);
        }
    }

    fn measure(&mut self, position: u64, Open { visit, rewards }: Open) {
        let Visit { part, row, epoch } = visit;
        self.open_rows.remove(&(part, row));
        let Some(rule) = self.rules.get(part as usize).and_then(Option::as_ref) else { return };
        if rewards.is_empty() {
            return;
        }
        let is_correct = |reward: &&f64| **reward >= rule.correct_reward;
        let correct = rewards.iter().filter(is_correct).count() as u32;
        let samples = rewards.len() as u32;
        let rate = PassRate { position, part, row, epoch, correct, samples };
        let rates = self.rows.entry((part, row)).or_default();
        rates.push_back(rate);
        let older = rates.len().saturating_sub(rule.groups as usize);
        let superseded = rates.drain(..older).map(|rate| rate.position).collect();
        self.changes.push((rate, superseded));
    }

    /// The changes of groups whose positions are used up, since the last call.
    pub fn take_changes(&mut self, is_used: impl Fn(u64) -> bool) -> Changes {
        let (used, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition(|(rate, _)| is_used(rate.position));
        self.changes = later;
        let (measured, superseded): (Vec<_>, Vec<_>) = used.into_iter().unzip();
        Changes { measured, superseded: superseded.concat() }
    }
}

#[cfg(test)]
mod tests;
