//! What `ahead` promises, one sentence a test.

use std::collections::BTreeSet;
use std::path::Path;

use rljob_crds::job::WeightSyncMethod;
use rljob_crds::rollout::{BatchOrder, StaleSamples};
use rljob_protocol::desired::{CheckpointPolicy, Desired};
use rljob_protocol::learner::Instruction;
use rljob_protocol::version::Version;

use crate::core::admission::Admission;
use crate::core::instruct::EngineView;
use crate::core::tests::{
    ask, at, desired, engine, restart, running, settings, started_with, tell, version,
};
use crate::core::work::Work;
use crate::core::{Facts, Now, Run, Settings};

fn ahead(max_staleness: u32, every_steps: u32, facts: Facts) -> Run {
    let admission = Admission {
        batch_size: 1,
        total_steps: 4,
        max_staleness,
        every_steps,
        stale: StaleSamples::Keep,
        order: BatchOrder::Data,
    };
    let mut run =
        started_with(Settings { admission, evaluation_every: vec![3], ..settings() }, facts);
    run.set_desired(Desired {
        checkpoint: CheckpointPolicy { every_steps: 100, keep_last: 2, export_every_steps: None },
        ..desired()
    })
    .unwrap();
    run
}

/// What is asked for at `steps` until the learners may train or must wait; publications are made at
/// once.
fn published_on_the_way(run: &mut Run, steps: u32, now: Now) -> (Vec<Version>, Instruction) {
    let mut published = Vec::new();
    loop {
        match run.instruct(0, steps, &[engine(None)], now).unwrap() {
            Instruction::PublishToDisk { version, path } => {
                run.folder_ready(0, version, &path).unwrap();
                published.push(version);
            }
            other => return (published, other),
        }
    }
}

#[test]
fn learners_train_while_they_write_a_folder_unless_an_evaluation_needs_it() {
    let mut run = ahead(1, 1, Facts { evaluated: BTreeSet::from([0]), ..Facts::default() });
    let ask_at = |run: &mut Run, steps, now| run.instruct(0, steps, &[engine(None)], now).unwrap();
    let is_publication = |instruction: &Instruction, of| {
        let step = match instruction {
            Instruction::PublishToDisk { version, .. } => Some(version.step),
            _ => None,
        };
        step == Some(of)
    };
    run.batch_fixed(1);
    assert!(is_publication(&ask_at(&mut run, 0, at(2)), 0));
    assert_eq!(ask_at(&mut run, 0, at(3)), Instruction::train(1));
    let again = ask_at(&mut run, 0, at(40));
    assert!(is_publication(&again, 0), "the reply may be lost: {again:?}");
    run.step_done(0, 1).unwrap();
    run.batch_fixed(2);
    assert!(is_publication(&ask_at(&mut run, 1, at(41)), 1), "weights of step 0 are not needed");
    assert_eq!(ask_at(&mut run, 1, at(42)), Instruction::train(2));
    run.step_done(0, 2).unwrap();
    run.batch_fixed(3);
    run.step_done(0, 3).unwrap();
    assert!(is_publication(&ask_at(&mut run, 3, at(43)), 3));
    assert_eq!(ask_at(&mut run, 3, at(44)), Instruction::Wait, "the evaluation of step 3 is due");
}

#[test]
fn sampling_runs_ahead_of_training_and_publication_waits_for_no_rollout() {
    let mut run = ahead(1, 1, Facts { evaluated: BTreeSet::from([0, 3]), ..Facts::default() });
    assert_eq!((run.sampling_work(), run.sampling_limit()), (Work::RolloutAhead, 2));
    assert_eq!(
        published_on_the_way(&mut run, 0, at(2)),
        (vec![version(0, 0)], Instruction::Wait),
        "batch 1 is not there"
    );
    run.batch_fixed(1);
    assert_eq!(published_on_the_way(&mut run, 0, at(2)), (vec![], Instruction::train(1)));
    run.batch_fixed(2);
    assert_eq!(run.sampling_work(), Work::None, "everything admitted is there");
    run.step_done(0, 1).unwrap();
    assert_eq!((run.sampling_work(), run.sampling_limit()), (Work::RolloutAhead, 3));
    assert_eq!(
        published_on_the_way(&mut run, 1, at(2)),
        (vec![version(1, 0)], Instruction::train(2))
    );
    assert_eq!(
        run.weights_wanted(),
        Some((version(1, 0), Path::new("/run/weights/step-1.attempt-0.7-2")))
    );
    run.batch_fixed(4);
    run.step_done(0, 2).unwrap();
    assert_eq!(
        published_on_the_way(&mut run, 2, at(2)),
        (vec![], Instruction::train(3)),
        "nothing is left to be sampled"
    );
}

#[test]
fn weights_are_published_every_n_steps() {
    let mut run = ahead(2, 2, Facts { evaluated: BTreeSet::from([0, 3]), ..Facts::default() });
    let mut published = Vec::new();
    for steps in 0..3 {
        run.batch_fixed(steps + 1);
        let (now, then) = published_on_the_way(&mut run, steps, at(2));
        assert_eq!(then, Instruction::train(steps + 1));
        published.extend(now);
        run.step_done(0, steps + 1).unwrap();
    }
    assert_eq!(published, [version(0, 0), version(2, 0)]);
}

#[test]
fn rollouts_continue_during_a_restart_and_a_replay_publishes_only_at_its_end() {
    let facts =
        Facts { last_step: 2, fixed_step: 2, evaluated: BTreeSet::from([0]), ..Facts::default() };
    let mut run = ahead(1, 1, facts);
    restart(&mut run, 0);
    assert_eq!((run.sampling_work(), run.sampling_limit()), (Work::RolloutAhead, 4));
    run.tick(at(70));
    for (name, instance) in [("t-0", "a"), ("t-1", "b")] {
        tell(&mut run, name, running(instance, 1), at(70));
    }
    assert_eq!(run.instruct(1, 0, &[engine(None)], at(70)), Ok(Instruction::train(1)));
    assert_eq!(run.instruct(1, 1, &[engine(None)], at(70)), Ok(Instruction::train(2)));
    let end = run.instruct(1, 2, &[engine(None)], at(70)).unwrap();
    assert!(
        matches!(
            end,
            Instruction::PublishToDisk { version, .. }
                if version == Version { step: 2, attempt: 1 },
        ),
        "{end:?}"
    );
}

#[test]
fn no_publication_waits_for_an_evaluation_and_it_keeps_its_version() {
    let mut run = ahead(1, 1, Facts::default());
    run.batch_fixed(1);
    assert_eq!(
        published_on_the_way(&mut run, 0, at(2)),
        (vec![version(0, 0)], Instruction::train(1)),
        "training does not wait for it"
    );
    assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
    assert!(run.evaluates_beside(version(0, 0)));
    for step in 1..3 {
        run.step_done(0, step).unwrap();
        run.batch_fixed(step + 1);
        assert_eq!(
            published_on_the_way(&mut run, step, at(3)),
            (vec![version(step, 0)], Instruction::train(step + 1)),
            "nor does a publication"
        );
        assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
    }
    run.evaluated(0);
    assert_eq!(run.work(), Work::None);
    run.step_done(0, 3).unwrap();
    assert_eq!(
        published_on_the_way(&mut run, 3, at(4)),
        (vec![version(3, 0)], Instruction::Wait),
        "batch 4 is not there"
    );
    assert_eq!(run.work(), Work::Evaluate(version(3, 0)), "the next one is due");
}

#[test]
fn an_evaluation_that_is_late_is_followed_by_one_of_the_newest_weights_that_are_due() {
    let mut run = ahead(1, 1, Facts::default());
    for step in 0..4 {
        run.batch_fixed(step + 1);
        published_on_the_way(&mut run, step, at(2));
        run.step_done(0, step + 1).unwrap();
        assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
    }
    assert!(matches!(ask(&mut run, 0, 4), Instruction::Checkpoint { .. }));
    assert_eq!(
        published_on_the_way(&mut run, 4, at(3)),
        (vec![version(4, 0)], Instruction::Wait),
        "the run ends after both"
    );
    run.evaluated(0);
    assert_eq!(run.work(), Work::Evaluate(version(4, 0)));
    assert!(!run.evaluates_beside(version(4, 0)), "its weights stay");
    run.evaluated(4);
    assert_eq!(run.work(), Work::None);
}

#[test]
fn an_evaluation_begins_again_after_a_restart_of_the_learners() {
    let mut run = ahead(1, 1, Facts::default());
    run.batch_fixed(1);
    published_on_the_way(&mut run, 0, at(2));
    assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
    restart(&mut run, 0);
    run.tick(at(70));
    for (name, instance) in [("t-0", "a"), ("t-1", "b")] {
        tell(&mut run, name, running(instance, 1), at(70));
    }
    assert_eq!(run.work(), Work::None, "no engine holds weights of this attempt");
    let published = run.instruct(1, 0, &[engine(None)], at(70)).unwrap();
    let Instruction::PublishToDisk { version, path } = published else { panic!("{published:?}") };
    run.folder_ready(1, version, &path).unwrap();
    assert_eq!(run.work(), Work::Evaluate(version));
}

#[test]
fn a_run_that_samples_ahead_evaluates_its_last_weights_before_it_ends() {
    let facts = Facts {
        last_step: 4,
        fixed_step: 4,
        evaluated: BTreeSet::from([0, 3]),
        checkpoints: BTreeSet::from([version(4, 0)]),
        ..Facts::default()
    };
    let mut run = ahead(1, 1, facts);
    assert_eq!(run.sampling_work(), Work::None);
    assert_eq!(published_on_the_way(&mut run, 4, at(2)), (vec![version(4, 0)], Instruction::Wait));
    assert_eq!(run.work(), Work::Evaluate(version(4, 0)));
    run.evaluated(4);
    assert!(matches!(ask(&mut run, 0, 4), Instruction::Export { .. }));
}

#[test]
fn an_engine_that_recovers_while_learners_wait_gets_a_separate_broadcast() {
    let facts = Facts {
        evaluated: BTreeSet::from([0, 3]),
        fixed_step: 1,
        last_step: 1,
        ..Facts::default()
    };
    let mut run = ahead(1, 2, facts);
    run.settings.method = WeightSyncMethod::Distributed;
    let engines = |held: [Option<Version>; 2]| {
        held.iter()
            .zip(0..)
            .map(|(&version, index)| EngineView {
                name: format!("e-{index}"),
                index,
                usable: true,
                version,
                group: None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        run.instruct(0, 1, &engines([Some(version(0, 0)); 2]), at(2)),
        Ok(Instruction::Wait),
        "step 1's weights are not due"
    );
    let published = run.instruct(0, 1, &engines([Some(version(0, 0)), None]), at(2)).unwrap();
    assert!(
        matches!(
            published,
            Instruction::PublishByBroadcast { version, .. }
                if version == Version { step: 1, attempt: 0 },
        ),
        "{published:?}"
    );
}
