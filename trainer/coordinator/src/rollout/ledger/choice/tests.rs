//! What batches of the groups that finish first promise, one sentence a test.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use rljob_crds::rollout::{BatchOrder, StaleSamples};

use super::{Batch, Ledger, Next, Outcome};
use crate::core::admission::Admission;

const RULE: Admission = Admission {
    batch_size: 2,
    total_steps: 9,
    max_staleness: 1,
    every_steps: 1,
    stale: StaleSamples::Keep,
    order: BatchOrder::Finished,
};
const GOOD: Outcome = Outcome { droppable: false, oldest: Some(0) };
const EQUAL: Outcome = Outcome { droppable: true, oldest: Some(0) };

fn batch(step: u32, positions: &[u64], next_position: u64, passed_over: &[u64]) -> Batch {
    Batch {
        step,
        positions: positions.to_vec(),
        dropped: 0,
        empty: 0,
        skipped: 0,
        capped: false,
        next_position,
        passed_over: passed_over.to_vec(),
    }
}

fn admitted(ledger: &mut Ledger, through: u32) -> Vec<(u64, u32)> {
    let admit = || {
        let next = ledger.upcoming(through)?;
        ledger.admit();
        Some(next)
    };
    std::iter::from_fn(admit).collect()
}

fn taken(ledger: &mut Ledger) -> Option<Batch> {
    match ledger.take()? {
        Next::Batch(batch) => Some(batch),
        Next::Again { position, .. } => panic!("position {position} is sampled again"),
    }
}

fn finish(ledger: &mut Ledger, positions: &[u64]) {
    for position in positions {
        ledger.finish(*position, GOOD);
    }
}

#[test]
fn a_slow_group_holds_no_batch_before_its_last_step_and_holds_that_one() {
    let mut ledger = Ledger::new(RULE, 1, 0, 0);
    assert_eq!(admitted(&mut ledger, 2), [(0, 1), (1, 1), (2, 2), (3, 2)]);
    finish(&mut ledger, &[3]);
    assert_eq!(taken(&mut ledger), None);
    finish(&mut ledger, &[1]);
    assert_eq!(taken(&mut ledger), Some(batch(1, &[1, 3], 4, &[0, 2])));
    // Step 1 is done: two more groups.
    assert_eq!(admitted(&mut ledger, 3), [(4, 3), (5, 3)]);
    finish(&mut ledger, &[4, 5]);
    assert_eq!(taken(&mut ledger), None, "step 2 is the last that may have position 0");
    finish(&mut ledger, &[0]);
    assert_eq!(taken(&mut ledger), Some(batch(2, &[0, 4], 5, &[2])));
    assert_eq!(admitted(&mut ledger, 4), [(6, 4), (7, 4)]);
    finish(&mut ledger, &[6, 7]);
    assert_eq!(taken(&mut ledger), None, "step 3 is the last that may have position 2");
    finish(&mut ledger, &[2]);
    assert_eq!(taken(&mut ledger), Some(batch(3, &[2, 5], 6, &[])));
}

#[test]
fn a_batch_leaves_no_more_groups_than_later_batches_have_room_for() {
    let mut ledger = Ledger::new(Admission { batch_size: 1, max_staleness: 2, ..RULE }, 9, 0, 0);
    assert_eq!(admitted(&mut ledger, 3), [(0, 1), (1, 2), (2, 3)]);
    // Both replacements are for step 3 as well, whose groups may be as late as step 5.
    ledger.finish(0, EQUAL);
    ledger.finish(1, EQUAL);
    assert_eq!(admitted(&mut ledger, 3), [(3, 3), (4, 3)]);
    finish(&mut ledger, &[2]);
    assert_eq!(taken(&mut ledger), Some(Batch { dropped: 2, ..batch(1, &[2], 3, &[]) }));
    for step in 2..4 {
        assert_eq!(admitted(&mut ledger, step + 2), [(u64::from(step) + 3, step + 2)]);
        finish(&mut ledger, &[u64::from(step) + 3]);
        let next = u64::from(step) + 4;
        assert_eq!(taken(&mut ledger), Some(batch(step, &[next - 1], next, &[3, 4])));
    }
    assert_eq!(admitted(&mut ledger, 6), [(7, 6)]);
    finish(&mut ledger, &[7]);
    assert_eq!(taken(&mut ledger), None, "step 4 is for position 3 or 4, and step 5 for the other");
    finish(&mut ledger, &[4]);
    assert_eq!(taken(&mut ledger), Some(batch(4, &[4], 7, &[3])));
    finish(&mut ledger, &[3]);
    assert_eq!(taken(&mut ledger), Some(batch(5, &[3], 7, &[])));
}

#[test]
fn after_a_restart_no_batch_passes_over_the_same_group_again() {
    let mut ledger = Ledger::new(Admission { max_staleness: 3, ..RULE }, 1, 4, 20)
        .with_passed_over(vec![11, 15, 16]);
    assert!(!ledger.may_skip(9), "a group that was admitted is not skipped");
    assert_eq!((ledger.judged(), ledger.step()), (11, 5));
    let positions = [(11, 5), (15, 5), (16, 6), (20, 6), (21, 7)];
    assert_eq!(admitted(&mut ledger, 8)[..5], positions);
    assert!(ledger.may_skip(1));
    finish(&mut ledger, &[20, 21, 15]);
    assert_eq!(taken(&mut ledger), None);
    finish(&mut ledger, &[11]);
    assert_eq!(taken(&mut ledger), Some(batch(5, &[11, 15], 20, &[16])));
    assert_eq!(taken(&mut ledger), None);
    finish(&mut ledger, &[16]);
    assert_eq!(taken(&mut ledger), Some(batch(6, &[16, 20], 21, &[])));
}

#[test]
fn in_data_order_groups_that_were_passed_over_come_first() {
    let rule = Admission { order: BatchOrder::Data, ..RULE };
    let mut ledger = Ledger::new(rule, 1, 4, 20).with_passed_over(vec![11, 15, 16]);
    assert_eq!(admitted(&mut ledger, 6), [(11, 5), (15, 5), (16, 6), (20, 6)]);
    finish(&mut ledger, &[20, 16, 15, 11]);
    assert_eq!(taken(&mut ledger), Some(batch(5, &[11, 15], 20, &[16])));
    assert_eq!(taken(&mut ledger), Some(batch(6, &[16, 20], 21, &[])));
}

#[test]
fn groups_are_dropped_when_they_finish_and_their_slots_are_given_away() {
    let mut ledger = Ledger::new(RULE, 2, 0, 0);
    admitted(&mut ledger, 2);
    let rejected = Outcome { droppable: true, oldest: None };
    for (position, outcome) in [(3, EQUAL), (2, rejected), (1, EQUAL), (0, EQUAL)] {
        ledger.finish(position, outcome);
    }
    assert_eq!((taken(&mut ledger), ledger.judged()), (None, 4));
    assert_eq!(admitted(&mut ledger, 2), [(4, 2), (5, 2), (6, 2)], "position 0 is kept");
    finish(&mut ledger, &[6]);
    let expected = batch(1, &[0, 6], 7, &[4, 5]);
    assert_eq!(taken(&mut ledger), Some(Batch { dropped: 3, empty: 1, capped: true, ..expected }));
}

#[test]
fn skipped_positions_are_used_up_with_a_group_after_them() {
    let mut ledger = Ledger::new(RULE, 1, 0, 0);
    ledger.skip();
    ledger.admit();
    ledger.admit();
    ledger.skip();
    ledger.admit();
    finish(&mut ledger, &[1, 2, 4]);
    assert_eq!(taken(&mut ledger), Some(Batch { skipped: 1, ..batch(1, &[1, 2], 3, &[]) }));
    assert_eq!(admitted(&mut ledger, 2), [(5, 2)]);
    finish(&mut ledger, &[5]);
    assert_eq!(taken(&mut ledger), Some(Batch { skipped: 1, ..batch(2, &[4, 5], 6, &[]) }));
}

#[test]
fn a_group_that_is_too_old_for_its_batch_is_sampled_again() {
    let rule = Admission { stale: StaleSamples::Drop, ..RULE };
    let mut ledger = Ledger::new(rule, 1, 4, 8);
    assert_eq!(admitted(&mut ledger, 6), [(8, 5), (9, 5), (10, 6), (11, 6)]);
    let aged = |oldest| Outcome { droppable: false, oldest: Some(oldest) };
    // Step 5 may have tokens of step 2 and later weights.
    for (position, oldest) in [(11, 1), (9, 2), (10, 3)] {
        ledger.finish(position, aged(oldest));
    }
    assert_eq!(ledger.take(), Some(Next::Again { position: 11, step: 6 }));
    assert_eq!(ledger.judged(), 8);
    assert_eq!(taken(&mut ledger), Some(batch(5, &[9, 10], 11, &[8])));
    ledger.finish(8, aged(2));
    ledger.finish(11, aged(4));
    assert_eq!(ledger.take(), Some(Next::Again { position: 8, step: 6 }));
    ledger.finish(8, aged(4));
    assert_eq!(taken(&mut ledger), Some(batch(6, &[8, 11], 12, &[])));
}

/// A run against a trainer that takes each batch when it is there, with restarts of the
/// coordinator.
struct Simulation<'a> {
    rule: Admission,
    attempts: u32,
    ledger: Ledger,
    batches: Vec<Batch>,
    in_progress: Vec<u64>,
    /// Groups whose samples the journal has.
    finished: BTreeSet<u64>,
    equal: &'a [bool],
    /// For each position, the steps of the oldest weights that may have sampled it, and the step
    /// that it was for, when it was first admitted.
    first: BTreeMap<u64, (u32, u32)>,
    is_stuck: bool,
}

impl<'a> Simulation<'a> {
    fn run(rule: Admission, attempts: u32, equal: &'a [bool], order: &[usize]) -> Self {
        let mut run = Self {
            rule,
            attempts,
            ledger: Ledger::new(rule, attempts, 0, 0),
            batches: Vec::new(),
            in_progress: Vec::new(),
            finished: BTreeSet::new(),
            equal,
            first: BTreeMap::new(),
            is_stuck: false,
        };
        let mut order = order.iter().cycle();
        let (mut done, mut trains, mut restarts) = (0, false, false);
        while done < rule.total_steps && !run.is_stuck {
            run.admit(done);
            let choice: usize = *order.next().unwrap();
            restarts = !restarts && choice.is_multiple_of(11);
            if restarts {
                run.restart();
                continue;
            }
            trains = !trains && choice.is_multiple_of(3) && run.batches.len() as u32 > done;
            if trains || run.in_progress.is_empty() {
                run.is_stuck = run.batches.len() as u32 <= done;
                done += 1;
                continue;
            }
            // Mostly the newest group finishes first, so that old ones are late.
            let count = run.in_progress.len();
            let index = if choice.is_multiple_of(2) { count - 1 } else { choice % count };
            let position = run.in_progress.remove(index);
            run.finish(position);
        }
        run
    }

    fn finish(&mut self, position: u64) {
        self.finished.insert(position);
        let droppable = self.equal[position as usize % self.equal.len()];
        self.ledger.finish(position, Outcome { droppable, oldest: Some(0) });
        self.batches.extend(std::iter::from_fn(|| taken(&mut self.ledger)));
    }

    fn admit(&mut self, done: u32) {
        while let Some((position, step)) = self.ledger.upcoming(self.rule.through(done)) {
            if position % 5 == 4 && self.ledger.may_skip(1) && !self.first.contains_key(&position) {
                self.ledger.skip();
                continue;
            }
            assert!(step <= done + self.rule.max_staleness + 1);
            self.ledger.admit();
            self.first.entry(position).or_insert((self.rule.oldest(step), step));
            let open = self.ledger.open as u32;
            let admitted = self.batches.len() as u32 * self.rule.batch_size + open;
            assert!(admitted <= (done + self.rule.max_staleness + 1) * self.rule.batch_size);
            if self.finished.contains(&position) {
                self.finish(position);
            } else {
                self.in_progress.push(position);
            }
        }
    }

    fn restart(&mut self) {
        let Some(newest) = self.batches.last() else { return };
        self.in_progress.clear();
        self.ledger = Ledger::new(self.rule, self.attempts, newest.step, newest.next_position)
            .with_passed_over(newest.passed_over.clone());
    }
}

fn rules() -> impl Strategy<Value = Admission> {
    (1_u32..5, 1_u32..12, 1_u32..4).prop_map(|(batch_size, total_steps, max_staleness)| Admission {
        batch_size,
        total_steps,
        max_staleness,
        ..RULE
    })
}

proptest! {
    #[test]
    fn every_group_is_in_one_batch_or_dropped_also_after_restarts_and_the_run_ends(
        rule in rules(), attempts in 1_u32..4,
        equal in proptest::collection::vec(any::<bool>(), 1..20),
        order in proptest::collection::vec(0_usize..1000, 1..60),
    ) {
        let simulation = Simulation::run(rule, attempts, &equal, &order);
        prop_assert!(!simulation.is_stuck);
        prop_assert_eq!(simulation.batches.len() as u32, rule.total_steps);
        let (mut used, mut counted) = (BTreeSet::new(), 0);
        for batch in &simulation.batches {
            prop_assert_eq!(batch.positions.len(), rule.batch_size as usize);
            prop_assert!(batch.positions.iter().all(|position| used.insert(*position)));
            counted += u64::from(rule.batch_size + batch.dropped + batch.skipped);
            prop_assert_eq!(batch.next_position - batch.passed_over.len() as u64, counted);
            prop_assert!(batch.passed_over.iter().all(|position| !used.contains(position)));
        }
        prop_assert_eq!(&simulation.batches.last().unwrap().passed_over, &[] as &[u64]);
        if attempts == 1 {
            let admitted: Vec<u64> = simulation.first.keys().copied().collect();
            prop_assert_eq!(used.into_iter().collect::<Vec<_>>(), admitted);
        }
    }

    #[test]
    fn no_group_is_later_than_the_staleness_nor_older_than_twice_the_staleness(
        rule in rules(), attempts in 1_u32..4,
        equal in proptest::collection::vec(any::<bool>(), 1..20),
        order in proptest::collection::vec(0_usize..1000, 1..60),
    ) {
        let simulation = Simulation::run(rule, attempts, &equal, &order);
        for batch in &simulation.batches {
            for position in &batch.positions {
                let (oldest, step) = simulation.first[position];
                prop_assert!(batch.step <= step + rule.max_staleness, "{position}: {batch:?}");
                prop_assert!(batch.step - 1 - oldest <= 2 * rule.max_staleness, "{position}");
            }
        }
    }
}
