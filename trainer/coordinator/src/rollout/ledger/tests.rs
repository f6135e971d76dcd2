//! What `ledger` promises, one sentence a test.

use std::collections::BTreeMap;

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use rljob_crds::rollout::{BatchOrder, StaleSamples};

use super::{Admission, Batch, Ledger, Next, Outcome};

const RULE: Admission = Admission {
    batch_size: 2,
    total_steps: 5,
    max_staleness: 0,
    every_steps: 1,
    stale: StaleSamples::Keep,
    order: BatchOrder::Data,
};
const GOOD: Outcome = Outcome { droppable: false, oldest: Some(0) };
const EQUAL: Outcome = Outcome { droppable: true, oldest: Some(0) };

fn batch(step: u32, positions: &[u64], dropped: u32, next_position: u64) -> Next {
    Next::Batch(Batch {
        step,
        positions: positions.to_vec(),
        dropped,
        empty: 0,
        skipped: 0,
        capped: false,
        next_position,
        passed_over: Vec::new(),
    })
}

fn admit(ledger: &mut Ledger, through: u32) -> Option<(u64, u32)> {
    let next = ledger.upcoming(through)?;
    ledger.admit();
    Some(next)
}

fn admitted(ledger: &mut Ledger, through: u32) -> Vec<(u64, u32)> {
    std::iter::from_fn(|| admit(ledger, through)).collect()
}

#[test]
fn a_step_s_groups_are_the_next_positions_whatever_order_they_finish_in() {
    let mut ledger = Ledger::new(RULE, 1, 3, 6);
    assert_eq!(admitted(&mut ledger, 4), [(6, 4), (7, 4)]);
    ledger.finish(7, GOOD);
    assert_eq!(ledger.take(), None);
    ledger.finish(6, EQUAL);
    assert_eq!(ledger.take(), Some(batch(4, &[6, 7], 0, 8)));
    assert_eq!((ledger.take(), admitted(&mut ledger, 4)), (None, vec![]));
}

#[test]
fn sampling_ahead_fills_every_admitted_step() {
    let mut ledger = Ledger::new(RULE, 1, 0, 0);
    assert_eq!(admitted(&mut ledger, 2), [(0, 1), (1, 1), (2, 2), (3, 2)]);
    for position in 2..4 {
        ledger.finish(position, GOOD);
    }
    assert_eq!(ledger.take(), None, "step 1 comes first");
    for position in 0..2 {
        ledger.finish(position, GOOD);
    }
    assert_eq!(
        (ledger.take(), ledger.take(), ledger.take()),
        (Some(batch(1, &[0, 1], 0, 2)), Some(batch(2, &[2, 3], 0, 4)), None)
    );
}

#[test]
fn a_group_that_has_zero_reward_variance_is_replaced_by_the_next_position() {
    let mut ledger = Ledger::new(RULE, 2, 0, 0);
    admitted(&mut ledger, 1);
    ledger.finish(1, EQUAL);
    assert_eq!(
        admitted(&mut ledger, 1),
        [(2, 1)],
        "position 1 goes, whatever becomes of position 0"
    );
    ledger.finish(0, GOOD);
    ledger.finish(2, GOOD);
    assert_eq!(ledger.take(), Some(batch(1, &[0, 2], 1, 3)));
}

#[test]
fn a_step_that_has_dropped_its_share_keeps_what_comes() {
    let mut ledger = Ledger::new(RULE, 2, 0, 0);
    let mut order = Vec::new();
    while order.len() < 4 {
        for (position, _) in admitted(&mut ledger, 1) {
            ledger.finish(position, EQUAL);
            order.push(position);
        }
        assert_eq!(order.len() < 4, ledger.clone().take().is_none());
    }
    let Next::Batch(expected) = batch(1, &[2, 3], 2, 4) else { unreachable!() };
    let expected = Batch { capped: true, ..expected };
    assert_eq!((order, ledger.take()), (vec![0, 1, 2, 3], Some(Next::Batch(expected))));
}

#[test]
fn groups_whose_samples_were_all_rejected_are_always_replaced() {
    let rejected = Outcome { droppable: true, oldest: None };
    let mut ledger = Ledger::new(RULE, 1, 0, 0);
    for (position, outcome) in [(0, rejected), (1, rejected), (2, GOOD), (3, rejected), (4, GOOD)] {
        while admit(&mut ledger, 1).is_some() {}
        ledger.finish(position, outcome);
        assert_eq!(ledger.clone().take().is_some(), position == 4);
    }
    let Next::Batch(expected) = batch(1, &[2, 4], 3, 5) else { unreachable!() };
    assert_eq!(ledger.take(), Some(Next::Batch(Batch { empty: 3, ..expected })));
}

#[test]
fn skipped_positions_take_no_place_in_a_step_and_are_used_up_with_it() {
    let mut ledger = Ledger::new(RULE, 2, 0, 0);
    ledger.skip();
    assert_eq!(ledger.skipped_in_a_row(), 1);
    assert_eq!((ledger.judged(), admit(&mut ledger, 1)), (0, Some((1, 1))));
    assert_eq!(ledger.skipped_in_a_row(), 0);
    ledger.skip();
    assert_eq!(admitted(&mut ledger, 1), [(3, 1)]);
    ledger.finish(1, EQUAL);
    ledger.finish(3, GOOD);
    assert_eq!((ledger.take(), ledger.judged()), (None, 4));
    assert_eq!(admitted(&mut ledger, 1), [(4, 1)]);
    ledger.finish(4, GOOD);
    let Next::Batch(expected) = batch(1, &[3, 4], 1, 5) else { unreachable!() };
    assert_eq!(ledger.take(), Some(Next::Batch(Batch { skipped: 2, ..expected })));
    assert_eq!(ledger.judged(), 5);
}

#[test]
fn a_group_that_is_too_old_is_made_again_and_its_batch_waits() {
    let mut ledger = Ledger::new(Admission { stale: StaleSamples::Drop, ..RULE }, 1, 2, 4);
    admitted(&mut ledger, 3);
    ledger.finish(4, Outcome { droppable: false, oldest: Some(1) });
    ledger.finish(5, Outcome { droppable: false, oldest: Some(2) });
    assert_eq!((ledger.take(), ledger.take()), (Some(Next::Again { position: 4, step: 3 }), None));
    ledger.finish(4, Outcome { droppable: false, oldest: Some(2) });
    assert_eq!(ledger.take(), Some(batch(3, &[4, 5], 0, 6)));
}

/// A run against a trainer that takes each batch when it is there: the batches, and for each
/// position the steps done when it was admitted.
struct Simulation {
    batches: Vec<Batch>,
    admitted_at: BTreeMap<u64, u32>,
    stuck: bool,
}

fn simulate(rule: Admission, attempts: u32, equal: &[bool], order: &[usize]) -> Simulation {
    let mut ledger = Ledger::new(rule, attempts, 0, 0);
    let (mut under_way, mut order) = (Vec::new(), order.iter().cycle());
    let mut simulation =
        Simulation { batches: Vec::new(), admitted_at: BTreeMap::new(), stuck: false };
    let (mut done, mut trains) = (0, false);
    while done < rule.total_steps {
        while let Some((position, _)) = admit(&mut ledger, rule.through(done)) {
            simulation.admitted_at.insert(position, done);
            under_way.push(position);
        }
        let choice = *order.next().unwrap();
        trains = !trains && choice % 3 == 0 && simulation.batches.len() as u32 > done;
        if trains || under_way.is_empty() {
            simulation.stuck = simulation.batches.len() as u32 <= done;
            if simulation.stuck {
                break;
            }
            done += 1;
            continue;
        }
        let position = under_way.swap_remove(choice % under_way.len());
        ledger.finish(
            position,
            Outcome {
                droppable: equal[position as usize % equal.len()],
                oldest: Some(simulation.admitted_at[&position]),
            },
        );
        while let Some(Next::Batch(batch)) = ledger.take() {
            simulation.batches.push(batch);
        }
    }
    simulation
}

fn rules() -> impl Strategy<Value = Admission> {
    (1_u32..5, 1_u32..8, 0_u32..4).prop_map(|(batch_size, total_steps, max_staleness)| Admission {
        batch_size,
        total_steps,
        max_staleness,
        ..RULE
    })
}

proptest! {
    #[test]
    fn no_group_is_ever_staler_than_the_bound_and_the_run_ends(
        rule in rules(), attempts in 1_u32..4,
        equal in proptest::collection::vec(any::<bool>(), 1..20),
        order in proptest::collection::vec(0_usize..1000, 1..50),
    ) {
        let simulation = simulate(rule, attempts, &equal, &order);
        prop_assert!(!simulation.stuck);
        prop_assert_eq!(simulation.batches.len() as u32, rule.total_steps);
        for batch in &simulation.batches {
            for position in &batch.positions {
                let staleness = batch.step - 1 - simulation.admitted_at[position];
                prop_assert!(staleness <= rule.max_staleness, "position {position} of step {} \
                    is {staleness} steps old", batch.step);
            }
        }
    }

    #[test]
    fn batches_use_every_position_once_and_do_not_depend_on_who_finishes_first(
        rule in rules(), attempts in 1_u32..4,
        equal in proptest::collection::vec(any::<bool>(), 1..20),
        orders in proptest::collection::vec(proptest::collection::vec(0_usize..1000, 1..50), 2),
    ) {
        let batches = simulate(rule, attempts, &equal, &orders[0]).batches;
        prop_assert_eq!(&batches, &simulate(rule, attempts, &equal, &orders[1]).batches);
        let mut next = 0;
        for batch in &batches {
            prop_assert_eq!(batch.positions.len(), rule.batch_size as usize);
            prop_assert_eq!(batch.next_position - next, u64::from(batch.dropped + rule.batch_size));
            prop_assert!(batch.dropped <= rule.batch_size * (attempts - 1));
            prop_assert!(
                batch.positions.is_sorted() && batch.positions.iter().all(
                    |position| (next..batch.next_position).contains(position),
                ),
            );
            next = batch.next_position;
        }
    }
}
