//! Tests of decisions, one sentence each.

use std::collections::BTreeSet;

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use rljob_crds::data::{CurriculumSpec, TrainDataset};
use rljob_crds::rollout::{BatchOrder, StaleSamples};
use serde_json::json;

use super::{Changes, Curriculum, Decision};
use crate::core::admission::Admission;
use crate::data::Visit;
use crate::persistence::journal::{DataPosition, PassRate};
use crate::rollout::ledger::{Batch, Ledger, Next, Outcome};

fn data(rule: &serde_json::Value) -> TrainDataset {
    serde_json::from_value(json!({"path": "p", "prompt": "{{q}}", "curriculum": rule})).unwrap()
}

fn visit(epoch: u64) -> Visit {
    Visit { part: 0, row: 7, epoch }
}

/// Samples a visit at a position with these rewards.
fn measured(curriculum: &mut Curriculum, position: u64, epoch: u64, rewards: &[f64]) {
    assert_eq!(curriculum.decide(visit(epoch)), Decision::Sample);
    curriculum.sample(position, visit(epoch));
    curriculum.finish(position, rewards.to_vec());
    curriculum.judge(position + 1);
}

#[test]
fn a_row_outside_the_bounds_is_skipped_for_some_epochs_and_measured_again() {
    let rule = json!({"min": 0.25, "max": 0.75, "epochs": 2, "correctReward": 0.5});
    let mut curriculum = Curriculum::new(&data(&rule), Vec::new());
    let decided = |curriculum: &Curriculum| [1, 2, 3].map(|epoch| curriculum.decide(visit(epoch)));
    let (skipped, sampled) = (
        [Decision::Skip, Decision::Skip, Decision::Sample],
        [Decision::Sample, Decision::Sample, Decision::Sample],
    );
    for (rewards, expected) in [
        ([0.5, 1.0, 0.75, 0.5], skipped),
        ([0.5, 1.0, 0.75, 0.4], sampled),
        ([0.5, 0.4, 0.0, 0.4], sampled),
        ([0.4, 0.4, 0.0, 0.4], skipped),
    ] {
        let mut own = curriculum.clone();
        measured(&mut own, 0, 0, &rewards);
        assert_eq!(decided(&own), expected, "{rewards:?}");
    }
    measured(&mut curriculum, 0, 0, &[]);
    assert_eq!(decided(&curriculum), sampled, "a group without samples measures nothing");
    assert_eq!(curriculum.take_changes(|_| true), Changes::default());
    measured(&mut curriculum, 9, 3, &[1.0]);
    assert_eq!([4, 5, 6].map(|epoch| curriculum.decide(visit(epoch))), skipped);
}

#[test]
fn the_pass_rate_is_that_of_the_newest_groups_and_older_ones_are_superseded() {
    let mut curriculum = Curriculum::new(&data(&json!({"max": 0.5, "groups": 2})), Vec::new());
    measured(&mut curriculum, 3, 0, &[1.0, 1.0]);
    measured(&mut curriculum, 5, 1, &[0.0, 0.0]);
    measured(&mut curriculum, 8, 2, &[1.0, 1.0, 1.0]);
    let rate = |position, epoch, correct, samples| {
        let (part, row) = (0, 7);
        PassRate { position, part, row, epoch, correct, samples }
    };
    let rates = vec![rate(3, 0, 2, 2), rate(5, 1, 0, 2), rate(8, 2, 3, 3)];
    let changes = Changes { measured: rates.clone(), superseded: vec![3] };
    assert_eq!(curriculum.take_changes(|_| true), changes);
    assert_eq!(curriculum.decide(visit(3)), Decision::Skip, "3 of 5");
    let restarted = Curriculum::new(&data(&json!({"max": 0.5, "groups": 2})), rates[1..].to_vec());
    assert_eq!(restarted.decide(visit(3)), Decision::Skip);
    assert_eq!(restarted.decide(visit(4)), Decision::Sample);
}

#[test]
fn a_row_waits_for_its_earlier_group_and_parts_without_a_rule_do_not() {
    let mut spec = data(&json!({"max": 0.5}));
    let mut curriculum = Curriculum::new(&spec, Vec::new());
    curriculum.sample(0, visit(0));
    curriculum.finish(0, vec![1.0]);
    assert_eq!(curriculum.decide(visit(1)), Decision::Wait, "it is not judged");
    assert_eq!(curriculum.decide(Visit { row: 8, ..visit(0) }), Decision::Sample);
    // Sampled again, since it was too old.
    curriculum.finish(0, vec![0.0]);
    curriculum.judge(1);
    assert_eq!(curriculum.decide(visit(1)), Decision::Sample);

    spec.curriculum = None;
    let mut curriculum = Curriculum::new(&spec, Vec::new());
    curriculum.sample(0, visit(0));
    assert_eq!((curriculum.is_used(), curriculum.decide(visit(1))), (false, Decision::Sample));
}

#[test]
fn pass_rates_are_recorded_with_the_batch_that_uses_their_position_up() {
    let mut curriculum = Curriculum::new(&data(&json!({"max": 0.5, "groups": 1})), Vec::new());
    let rate =
        |position, epoch| PassRate { position, part: 0, row: 7, epoch, correct: 1, samples: 1 };
    for (position, epoch) in [(0, 0), (4, 5)] {
        curriculum.sample(position, visit(epoch));
        curriculum.finish(position, vec![1.0]);
        curriculum.judge_group(position);
    }
    curriculum.judge_group(4);
    assert_eq!(curriculum.decide(visit(6)), Decision::Skip, "the newest group is judged");
    let first = Changes { measured: vec![rate(0, 0)], superseded: vec![] };
    assert_eq!(curriculum.take_changes(|position| position != 4), first);
    let second = Changes { measured: vec![rate(4, 5)], superseded: vec![0] };
    assert_eq!(curriculum.take_changes(|_| true), second);
}

/// Samples the positions that a step up to `through` has room for, and returns them.
fn admitted(ledger: &mut Ledger, curriculum: &mut Curriculum, through: u32, rows: u64) -> Vec<u64> {
    let mut positions = Vec::new();
    while let Some((position, _)) = ledger.upcoming(through) {
        let visit = Visit { part: 0, row: position % rows, epoch: position / rows };
        match curriculum.decide(visit) {
            Decision::Wait => break,
            Decision::Skip if ledger.may_skip(u64::MAX) => ledger.skip(),
            Decision::Skip | Decision::Sample => {
                curriculum.sample(position, visit);
                ledger.admit();
                positions.push(position);
            }
        }
    }
    positions
}

/// Batches of a run over `rows` rows whose groups have the rewards `reward(position)`. `order`
/// decides which group finishes next, and after which batches the run restarts from its journal.
fn simulate(
    rule: &CurriculumSpec,
    batches_of: BatchOrder,
    rows: u64,
    correct: &[bool],
    order: &[usize],
) -> Vec<Batch> {
    let admission = Admission {
        batch_size: 3,
        total_steps: 12,
        max_staleness: 1,
        every_steps: 1,
        stale: StaleSamples::Keep,
        order: batches_of,
    };
    let spec = data(&serde_json::to_value(rule).unwrap());
    let (mut journal, mut batches) = (Vec::<PassRate>::new(), Vec::<Batch>::new());
    let mut order = order.iter().copied().cycle();
    let mut curriculum = Curriculum::new(&spec, Vec::new());
    let mut ledger = Ledger::new(admission, 2, 0, 0);
    let mut in_progress = Vec::new();
    while batches.len() < 12 {
        let through = admission.through(batches.len() as u32);
        in_progress.extend(admitted(&mut ledger, &mut curriculum, through, rows));
        let choice = order.next().unwrap();
        let position: u64 = in_progress.swap_remove(choice % in_progress.len());
        let rewards = [0, 1].map(|n| f64::from(correct[(position as usize + n) % correct.len()]));
        let droppable = rewards[0].to_bits() == rewards[1].to_bits();
        curriculum.finish(position, rewards.to_vec());
        ledger.finish(position, Outcome { droppable, oldest: Some(0) });
        if batches_of == BatchOrder::Finished {
            curriculum.judge_group(position);
        }
        while let Some(Next::Batch(batch)) = ledger.take() {
            curriculum.judge(ledger.judged());
            let used = DataPosition {
                next_position: batch.next_position,
                passed_over: batch.passed_over.clone(),
            };
            let Changes { measured, superseded } =
                curriculum.take_changes(|position| used.has_used(position));
            for rate in &measured {
                assert!(journal.iter().all(|other| other.position != rate.position), "{rate:?}");
            }
            journal.extend(measured);
            journal.retain(|rate| !superseded.contains(&rate.position));
            if choice % 2 == 0 {
                curriculum = Curriculum::new(&spec, journal.clone());
                ledger = Ledger::new(admission, 2, batch.step, batch.next_position)
                    .with_passed_over(batch.passed_over.clone());
                in_progress.clear();
            }
            batches.push(batch);
        }
        curriculum.judge(ledger.judged());
    }
    batches
}

fn rules() -> impl Strategy<Value = CurriculumSpec> {
    (0_u32..3, 1_u32..4, 1_u32..4).prop_map(|(bounds, groups, epochs)| {
        let (min, max) = [(0.1, 1.0), (0.0, 0.9), (0.3, 0.7)][bounds as usize];
        let rule = json!({"min": min, "max": max, "groups": groups, "epochs": epochs});
        serde_json::from_value(rule).unwrap()
    })
}

proptest! {
    #[test]
    fn batches_do_not_depend_on_who_finishes_first_nor_on_restarts(
        rule in rules(),
        rows in 1_u64..9,
        correct in proptest::collection::vec(any::<bool>(), 1..20),
        orders in proptest::collection::vec(proptest::collection::vec(0_usize..1000, 1..50), 2),
    ) {
        let odd: Vec<usize> = orders[0].iter().map(|choice| choice * 2 + 1).collect();
        let data = BatchOrder::Data;
        let without_restarts = simulate(&rule, data, rows, &correct, &odd);
        for order in &orders {
            prop_assert_eq!(&simulate(&rule, data, rows, &correct, order), &without_restarts);
        }
    }

    #[test]
    fn batches_of_the_groups_that_finish_first_use_every_position_once_also_after_restarts(
        rule in rules(),
        rows in 1_u64..9,
        correct in proptest::collection::vec(any::<bool>(), 1..20),
        order in proptest::collection::vec(0_usize..1000, 1..50),
    ) {
        let batches = simulate(&rule, BatchOrder::Finished, rows, &correct, &order);
        let (mut used, mut counted) = (BTreeSet::new(), 0);
        for batch in &batches {
            prop_assert!(batch.positions.iter().all(|position| used.insert(*position)));
            counted += u64::from(3 + batch.dropped + batch.skipped);
            prop_assert_eq!(batch.next_position - batch.passed_over.len() as u64, counted);
        }
    }
}
