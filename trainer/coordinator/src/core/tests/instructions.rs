//! Instructions: publication, rollouts, training, checkpoints, evaluation, export.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rljob_crds::job::WeightSyncMethod;
use rljob_protocol::learner::{Instruction, Transfer};
use rljob_protocol::status::Phase;
use rljob_protocol::supervisor::Order;
use rljob_protocol::version::Version;

use super::{
    ask, at, engine, exited, publish_and_fix, settings, started, started_with, tell, version,
};
use crate::core::instruct::{EngineView, KeptGroup};
use crate::core::work::Work;
use crate::core::{Facts, Settings};

#[test]
fn publication_comes_before_rollouts_and_training_after_them() {
    let mut run = started();
    let path = PathBuf::from("/run/weights/step-0.attempt-0.7-1");
    assert_eq!(
        ask(&mut run, 0, 0),
        Instruction::PublishToDisk { version: version(0, 0), path: path.clone() }
    );
    assert_eq!(run.work(), Work::Rollout(version(0, 0)));
    assert_eq!(run.folder_of(version(0, 0)), None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    run.folder_ready(0, version(0, 0), &path).unwrap();
    assert_eq!(run.folder_of(version(0, 0)), Some(path.as_path()));
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    run.batch_fixed(1);
    assert_eq!(run.work(), Work::None);
    assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
}

#[test]
fn a_lost_publication_is_instructed_again_under_another_name() {
    let mut run = started();
    ask(&mut run, 0, 0);
    let again = run.instruct(0, 0, &[], at(40)).unwrap();
    assert_eq!(
        again,
        Instruction::PublishToDisk {
            version: version(0, 0),
            path: PathBuf::from("/run/weights/step-0.attempt-0.7-2")
        }
    );
}

#[test]
fn a_broadcast_goes_to_the_engines_that_lack_the_weights_and_is_over_when_they_are_served() {
    let mut run = started_with(
        Settings { method: WeightSyncMethod::Distributed, ..settings() },
        Facts::default(),
    );
    let engines = |held| {
        let view = |index: u32, version, usable| EngineView {
            name: format!("e-{index}"),
            index,
            usable,
            version,
            group: None,
        };
        [view(0, held, true), view(1, None, true), view(2, None, false), view(3, None, true)]
    };
    let transfer = |index: u32, sender| Transfer {
        engine: format!("e-{index}"),
        sender,
        group: format!("step-0.attempt-0.7-1.{index}"),
        world_size: 2,
        kept: false,
    };
    let expected = vec![transfer(1, 1), transfer(3, 1)];
    let first = run.instruct(0, 0, &engines(Some(version(0, 0))), at(2)).unwrap();
    assert_eq!(
        first,
        Instruction::PublishByBroadcast { version: version(0, 0), transfers: expected.clone() }
    );
    assert_eq!(run.sender_ready(0, version(0, 0), 0), Ok(vec![]));
    assert_eq!(run.sender_ready(0, version(0, 0), 1), Ok(expected.clone()));
    assert_eq!(
        run.sender_ready(0, version(0, 0), 1),
        Ok(vec![]),
        "a repeated report starts nothing"
    );
    assert_eq!(
        run.instruct(0, 0, &engines(Some(version(0, 0))), at(300)),
        Ok(Instruction::Wait),
        "the transfers are under way"
    );
    run.transfer_over(&expected[0]);
    run.transfer_over(&expected[1]);
    let second = run.instruct(0, 0, &engines(Some(version(0, 0))), at(301)).unwrap();
    let Instruction::PublishByBroadcast { transfers, .. } = second else { panic!("{second:?}") };
    assert_eq!(transfers[0].group, "step-0.attempt-0.7-2.1");
}

#[test]
fn a_process_group_is_reused_by_the_attempt_and_sender_that_joined_it() {
    let mut run = started_with(
        Settings { method: WeightSyncMethod::Distributed, ..settings() },
        Facts::default(),
    );
    let kept = |attempt, sender| {
        let group = KeptGroup { name: "kept".to_owned(), attempt, sender };
        EngineView { group: Some(group), ..engine(None) }
    };
    let mut transfer = |view: EngineView, seconds| {
        let instruction = run.instruct(0, 0, &[view], at(seconds)).unwrap();
        let Instruction::PublishByBroadcast { transfers, .. } = instruction else { panic!() };
        (transfers[0].kept, transfers[0].group == "kept")
    };
    assert_eq!(transfer(kept(0, 0), 2), (true, true));
    assert_eq!(transfer(kept(1, 0), 40), (false, false), "another attempt");
    assert_eq!(transfer(kept(0, 1), 80), (false, false), "another sender");
    assert_eq!(transfer(engine(None), 120), (false, false));
}

#[test]
fn an_engine_that_hangs_in_its_update_keeps_the_weights_from_no_other() {
    let mut run = started_with(
        Settings { method: WeightSyncMethod::Distributed, ..settings() },
        Facts::default(),
    );
    let view = |index: u32, usable| EngineView {
        name: format!("e-{index}"),
        index,
        usable,
        version: None,
        group: None,
    };
    let mut published_to =
        |engines: &[EngineView], seconds| match run.instruct(0, 0, engines, at(seconds)).unwrap() {
            Instruction::PublishByBroadcast { transfers, .. } => {
                for transfer in &transfers {
                    run.sender_ready(0, version(0, 0), transfer.sender).unwrap();
                }
                transfers.into_iter().map(|transfer| transfer.engine).collect()
            }
            other => vec![format!("{other:?}")],
        };
    assert_eq!(published_to(&[view(0, true), view(1, false)], 2), ["e-0"]);
    assert_eq!(
        published_to(&[view(0, false), view(1, false)], 3),
        ["Wait"],
        "its transfer is under way, and the other one is busy"
    );
    assert_eq!(published_to(&[view(0, false), view(1, true)], 4), ["e-1"]);
    assert_eq!(published_to(&[view(0, false), view(1, false)], 5), ["Wait"]);
}

#[test]
fn a_replay_serves_fixed_batches_without_publishing_and_publishes_at_its_end() {
    let facts = Facts {
        last_step: 3,
        fixed_step: 3,
        evaluated: BTreeSet::from([0, 2]),
        checkpoints: BTreeSet::from([version(1, 0)]),
        ..Facts::default()
    };
    let mut run = started_with(Settings { evaluation_every: vec![2], ..settings() }, facts);
    assert_eq!(ask(&mut run, 0, 1), Instruction::train(2));
    run.step_done(0, 2).unwrap();
    assert_eq!(run.last_step(), 3, "progress does not fall");
    run.checkpoint_done(0, version(2, 0), "/run/checkpoints/step-2.attempt-0".as_ref()).unwrap();
    assert_eq!(ask(&mut run, 0, 2), Instruction::train(3));
    let publish = ask(&mut run, 0, 3);
    assert!(
        matches!(
            publish,
            Instruction::PublishToDisk { version, .. }
                if version == Version { step: 3, attempt: 0 },
        ),
        "{publish:?}"
    );
}

#[test]
fn each_suite_is_due_at_its_own_interval_and_after_the_last_step() {
    let settings = || Settings { evaluation_every: vec![2, 3], total_steps: 7, ..settings() };
    let due = |evaluated: &[u32], steps: u32| {
        let evaluated = evaluated.iter().copied().collect();
        let run = started_with(settings(), Facts { evaluated, ..Facts::default() });
        run.suites_due(steps)
    };
    let both: Vec<usize> = vec![0, 1];
    assert_eq!(due(&[], 0), both);
    assert_eq!(due(&[0], 1), Vec::<usize>::new());
    assert_eq!((due(&[0], 2), due(&[0, 2], 3)), (vec![0], vec![1]));
    assert_eq!(due(&[0], 3), both, "the first is late");
    assert_eq!((due(&[0, 2, 3, 4], 6), due(&[0, 2, 3, 4, 6], 7)), (both.clone(), both));
}

#[test]
fn a_checkpoint_is_due_every_n_steps_once() {
    let mut run = started_with(settings(), Facts { fixed_step: 3, ..Facts::default() });
    assert_eq!(ask(&mut run, 0, 1), Instruction::train(2));
    let path = PathBuf::from("/run/checkpoints/step-2.attempt-0");
    assert_eq!(
        ask(&mut run, 0, 2),
        Instruction::Checkpoint { version: version(2, 0), path: path.clone() }
    );
    assert_eq!(ask(&mut run, 0, 2), Instruction::train(3), "it is written in the background");
    run.checkpoint_done(0, version(2, 0), &path).unwrap();
    assert_eq!(run.newest_checkpoint(), Some(version(2, 0)));
}

#[test]
fn the_last_step_is_checkpointed_evaluated_exported_and_ends_the_run() {
    let facts = Facts { last_step: 4, fixed_step: 4, ..Facts::default() };
    let mut run = started_with(Settings { evaluation_every: vec![3], ..settings() }, facts);
    let checkpoint = PathBuf::from("/run/checkpoints/step-4.attempt-0");
    assert_eq!(
        ask(&mut run, 0, 4),
        Instruction::Checkpoint { version: version(4, 0), path: checkpoint.clone() }
    );
    publish_and_fix(&mut run, 0, 4);
    assert_eq!(run.work(), Work::Evaluate(version(4, 0)));
    assert_eq!(ask(&mut run, 0, 4), Instruction::Wait);
    run.evaluated(4);
    let export = PathBuf::from("/run/export");
    assert_eq!(
        ask(&mut run, 0, 4),
        Instruction::Export { version: version(4, 0), path: export.clone() }
    );
    run.folder_ready(0, version(4, 0), &export).unwrap();
    assert_eq!(ask(&mut run, 0, 4), Instruction::Wait, "the checkpoint is not reported yet");
    run.checkpoint_done(0, version(4, 0), &checkpoint).unwrap();
    assert_eq!(ask(&mut run, 0, 4), Instruction::Exit);
    tell(&mut run, "t-0", exited("a", 0, 0), at(3));
    assert_eq!(run.phase(), Phase::Running);
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 0), at(3)), Order::Exit);
    assert_eq!(run.phase(), Phase::Finished);
}

#[test]
fn the_first_evaluation_comes_before_the_first_rollout() {
    let mut run =
        started_with(Settings { evaluation_every: vec![3], ..settings() }, Facts::default());
    ask(&mut run, 0, 0);
    assert_eq!(run.work(), Work::Evaluate(version(0, 0)));
    run.evaluated(0);
    assert_eq!(run.work(), Work::Rollout(version(0, 0)));
}
