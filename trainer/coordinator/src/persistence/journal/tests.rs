//! What `journal` promises, one sentence a test.

use std::collections::{BTreeMap, BTreeSet};

use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rljob_protocol::version::Version;
use serde_json::json;

use super::{Checkpoint, Event, FixedBatch, Journal, Pending, Sample, Segment, VersionRun};

mod file;
mod passed_over;
mod rejections;

pub(super) fn sample(position: u64, index: u32) -> Sample {
    Sample {
        position,
        index,
        row: 5,
        segments: vec![
            Segment::given(0, vec![1, 2], "2 + 3?".to_owned()),
            Segment {
                turn: 0,
                tokens: vec![i64::from(u32::MAX), 3, 2],
                trained: true,
                sampler_logprobs: vec![-0.1, f32::MIN_POSITIVE, f32::NEG_INFINITY],
                teacher_logprobs: Vec::new(),
                versions: vec![run(4, 2), run(3, 1)],
                text: "5 – fünf".to_owned(),
            },
        ],
        finish_reason: "stop".to_owned(),
        sampling: json!({"temperature": 0.7, "sampling_seed": u64::MAX}),
        reward: 0.1 + 0.2,
        turn_rewards: vec![0.1 + 0.2],
        metadata: serde_json::Map::new(),
        reward_components: BTreeMap::from([("math".to_owned(), 0.1 + 0.2)]),
    }
}

fn run(step: u32, tokens: u32) -> VersionRun {
    VersionRun { version: Version { step, attempt: 0 }, tokens }
}

/// A batch of the groups at `positions`, which are all up to the last.
fn batch(step: u32, positions: &[u64]) -> FixedBatch {
    FixedBatch {
        step,
        positions: positions.to_vec(),
        next_position: positions.last().map_or(0, |last| last + 1),
        ..FixedBatch::default()
    }
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("journal.sqlite")
    }

    fn open(&self) -> Journal {
        Journal::open(&self.path()).unwrap()
    }
}

#[test]
fn a_batch_s_samples_come_in_canonical_order_whatever_the_order_they_came_in() {
    let place = Place::new();
    let samples = [sample(9, 0), sample(10, 0), sample(10, 1)];
    let [a, b, c] = samples.clone();
    assert_eq!(place.open().put_samples(&[c, sample(11, 0), a]).unwrap(), 3);
    assert_eq!(place.open().put_samples(&[b]).unwrap(), 1);
    assert_eq!(place.open().samples(1).unwrap(), []);
    place.open().fix_batch(&batch(1, &[9, 10])).unwrap();
    assert_eq!(place.open().samples(1).unwrap(), samples);
}

#[test]
fn an_existing_sample_is_unchanged() {
    let place = Place::new();
    let mut journal = place.open();
    journal.put_samples(&[sample(0, 0)]).unwrap();
    let other = Sample { reward: 1.0, ..sample(0, 0) };
    assert_eq!(journal.put_samples(&[other, sample(0, 1)]).unwrap(), 1);
    journal.fix_batch(&batch(1, &[0])).unwrap();
    assert_eq!(journal.samples(1).unwrap(), [sample(0, 0), sample(0, 1)]);
}

#[test]
fn a_fixed_batch_takes_no_sample_more_and_the_rejected_call_leaves_nothing() {
    let place = Place::new();
    let mut journal = place.open();
    journal.put_samples(&[sample(0, 0)]).unwrap();
    journal.fix_batch(&batch(1, &[0])).unwrap();
    journal.fix_batch(&batch(1, &[0, 1])).unwrap();
    let error = journal.put_samples(&[sample(1, 0), sample(0, 1)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "positions below 1 are used up: sample 1 of position 0 comes too late"
    );
    assert_eq!(journal.put_samples(&[sample(0, 0)]).unwrap(), 0);
    assert_eq!(
        (journal.samples(1).unwrap(), journal.pending().unwrap()),
        (vec![sample(0, 0)], vec![])
    );
    assert_eq!(
        (
            journal.is_fixed(1).unwrap(),
            journal.is_fixed(2).unwrap(),
            journal.newest_batch().unwrap()
        ),
        (true, false, (1, 1))
    );
}

#[test]
fn batches_are_fixed_one_after_the_other() {
    let place = Place::new();
    let mut journal = place.open();
    assert_eq!(journal.newest_batch().unwrap(), (0, 0));
    assert_eq!(
        journal.fix_batch(&batch(0, &[])).unwrap_err().to_string(),
        "the batch of step 0 cannot be fixed: the newest fixed one is of step 0"
    );
    journal.fix_batch(&batch(51, &[])).unwrap();
    assert_eq!(
        journal.fix_batch(&batch(53, &[])).unwrap_err().to_string(),
        "the batch of step 53 cannot be fixed: the newest fixed one is of step 51"
    );
    journal.fix_batch(&batch(52, &[])).unwrap();
    assert_eq!(journal.newest_batch().unwrap(), (52, 0));
}

#[test]
fn what_is_sampled_ahead_is_known_after_a_crash_and_dropped_groups_are_in_no_batch() {
    let place = Place::new();
    let mut journal = place.open();
    journal
        .put_samples(&[sample(0, 0), sample(1, 0), sample(2, 0), sample(3, 0), sample(3, 1)])
        .unwrap();
    journal
        .fix_batch(&FixedBatch {
            step: 1,
            positions: vec![0, 2],
            next_position: 3,
            dropped_groups: 1,
            stale_samples: 4,
            ..FixedBatch::default()
        })
        .unwrap();
    let mut journal = reopened(journal, &place);
    let pending = |index| Pending {
        position: 3,
        index,
        reward: 0.1 + 0.2,
        tokens: 3,
        oldest: 3,
        rejected: 0,
    };
    assert_eq!(
        (journal.newest_batch().unwrap(), journal.pending().unwrap()),
        ((1, 3), vec![pending(0), pending(1)])
    );
    assert_eq!(
        (journal.samples(1).unwrap(), journal.left_out(1).unwrap()),
        (vec![sample(0, 0), sample(2, 0)], (1, 4))
    );
    journal.discard(3, 0).unwrap();
    journal.discard(0, 0).unwrap();
    assert_eq!(
        (journal.pending().unwrap(), journal.samples(1).unwrap().len()),
        (vec![pending(1)], 2),
        "what is fixed stays"
    );
}

#[test]
fn pruning_removes_fixed_steps_and_a_pruned_batch_is_not_taken_for_an_empty_one() {
    let place = Place::new();
    let mut journal = place.open();
    for position in 1..=4 {
        journal.put_samples(&[sample(position, 0), sample(position, 1)]).unwrap();
    }
    journal.fix_batch(&batch(1, &[1])).unwrap();
    journal.fix_batch(&batch(2, &[3])).unwrap();
    assert_eq!(journal.prune_through(1).unwrap(), 2);
    let error = journal.samples(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the journal holds 0 of the 2 samples of step 1: they were pruned, since a newer \
            checkpoint was kept"
    );
    assert_eq!(
        journal.prune_through(9).unwrap(),
        4,
        "the group that was dropped goes with its step"
    );
    assert_eq!((journal.pending().unwrap().len(), journal.newest_batch().unwrap()), (2, (2, 4)));
    assert_eq!([2, 3].map(|step| journal.next_position(step).unwrap()), [Some(4), None]);
}

#[test]
fn a_step_is_reported_once_and_its_first_numbers_stay() {
    let place = Place::new();
    let metrics = |step, attempt| StepMetrics {
        attempt,
        ..StepMetrics::with_scalars(step, [("loss", 0.1 + 0.2), ("reward", 0.5)])
    };
    let mut journal = place.open();
    assert_eq!(journal.last_step().unwrap(), 0);
    assert!(journal.report_step(&metrics(1, 0)).unwrap());
    assert!(journal.report_step(&metrics(2, 0)).unwrap());
    assert!(!journal.report_step(&metrics(1, 1)).unwrap());
    assert_eq!(
        (journal.metrics(1).unwrap(), journal.metrics(3).unwrap(), journal.last_step().unwrap()),
        (Some(metrics(1, 0)), None, 2)
    );
}

#[test]
fn an_evaluation_is_kept_once_a_step() {
    let place = Place::new();
    let metrics = |step, greedy| EvaluationMetrics {
        step,
        prompts: 4,
        sampled: Some(0.25),
        greedy: Some(greedy),
        seconds: 1.5,
        ..EvaluationMetrics::default()
    };
    let mut journal = place.open();
    assert_eq!(journal.last_evaluation().unwrap(), None);
    assert!(journal.put_evaluation(&metrics(0, 0.5)).unwrap());
    assert!(journal.put_evaluation(&metrics(10, 0.75)).unwrap());
    assert!(!journal.put_evaluation(&metrics(0, 1.0)).unwrap());
    assert_eq!(journal.evaluation(0).unwrap(), Some(metrics(0, 0.5)));
    assert_eq!(
        (journal.evaluation(5).unwrap(), journal.evaluated_steps().unwrap()),
        (None, BTreeSet::from([0, 10]))
    );
    assert_eq!(journal.last_evaluation().unwrap(), Some(metrics(10, 0.75)));
}

#[test]
fn checkpoints_are_listed_by_step_and_attempt_until_they_are_dropped() {
    let place = Place::new();
    let checkpoint = |step, attempt| {
        let version = Version { step, attempt };
        Checkpoint { version, path: format!("/runs/{version}").into() }
    };
    let mut journal = place.open();
    for (step, attempt) in [(10, 1), (9, 2), (10, 0), (10, 0)] {
        journal.put_checkpoint(&checkpoint(step, attempt)).unwrap();
    }
    assert_eq!(
        journal.checkpoints().unwrap(),
        [checkpoint(9, 2), checkpoint(10, 0), checkpoint(10, 1)]
    );
    journal.drop_checkpoint(Version { step: 10, attempt: 0 }).unwrap();
    assert_eq!(
        reopened(journal, &place).checkpoints().unwrap(),
        [checkpoint(9, 2), checkpoint(10, 1)]
    );
}

fn reopened(journal: Journal, place: &Place) -> Journal {
    drop(journal);
    place.open()
}

#[test]
fn events_and_state_are_kept() {
    let place = Place::new();
    let mut journal = place.open();
    let event = |second: i64| Event {
        at: jiff::Timestamp::new(second, 5_000_000).unwrap(),
        kind: "EngineLost".to_owned(),
        detail: json!({"n": second}),
    };
    for second in 1..=3 {
        journal.put_event(&event(second)).unwrap();
    }
    journal.put_state("attempt", &json!(1)).unwrap();
    journal.put_state("attempt", &json!(2)).unwrap();
    let journal = reopened(journal, &place);
    assert_eq!(journal.events(2).unwrap(), [event(2), event(3)]);
    assert_eq!(
        (journal.get_state("attempt").unwrap(), journal.get_state("restarts").unwrap()),
        (Some(json!(2)), None)
    );
}

#[test]
fn a_sample_of_several_turns_is_read_back_unchanged() {
    let place = Place::new();
    let mut journal = place.open();
    let mut turns = sample(0, 0);
    let mut answer = turns.segments[1].clone();
    answer.teacher_logprobs = vec![-0.5, f32::MIN_POSITIVE, -7.25];
    turns.segments.push(Segment::given(1, vec![7, 8, 9], "wrong, again".to_owned()));
    turns.segments.push(Segment { turn: 1, ..answer });
    turns.turn_rewards = vec![0.1, 0.2];
    turns.metadata.insert("tool".to_owned(), json!({"calls": 2}));
    assert_eq!(turns.trained_tokens(), 6);
    let texts = ("2 + 3?".to_owned(), "5 – fünfwrong, again5 – fünf".to_owned());
    assert_eq!(turns.texts(), texts);
    journal.put_samples(std::slice::from_ref(&turns)).unwrap();
    journal.fix_batch(&batch(1, &[0])).unwrap();
    assert_eq!(journal.samples(1).unwrap(), [turns]);
}
