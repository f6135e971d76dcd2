//! Groups of frozen models beside a trainer: order of batches, and failures of each alone.

use std::collections::BTreeMap;

use rljob_crds::RLJobSpec;
use rljob_crds::dataflow::plan;
use rljob_protocol::desired::{Desired, Mode};
use rljob_protocol::group::GroupInstruction;
use rljob_protocol::learner::Instruction;
use rljob_protocol::status::{Activity, Phase};
use rljob_protocol::supervisor::{Order, SupervisorReport};
use serde_json::json;

use super::super::learner_group::GroupSize;
use super::super::tests::{
    ask, at, desired, exited, report, running, settings, started_with, tell, version,
};
use super::super::{Facts, Rejection, Run, Settings};

fn of_group(report: SupervisorReport) -> SupervisorReport {
    SupervisorReport { group: Some("g".to_owned()), ..report }
}

/// A run with two trainers and a group of one, all of which run learners of attempt 0.
fn grouped(facts: Facts) -> Run {
    grouped_with(settings(), facts)
}

fn grouped_with(settings: Settings, facts: Facts) -> Run {
    let groups = BTreeMap::from([("g".to_owned(), GroupSize { supervisors: 1, processes: 1 })]);
    let mut run = started_with(Settings { groups, rollouts: false, ..settings }, facts);
    tell(&mut run, "g-0", of_group(report("c", None, vec![])), at(1));
    tell(&mut run, "g-0", of_group(running("c", 0)), at(1));
    run
}

fn fixed(steps: u32) -> Run {
    grouped(Facts { fixed_step: steps, ..Facts::default() })
}

/// Number of restarts and stage of the trainer, and the same of the group.
fn stages(run: &Run) -> [(u32, &'static str); 2] {
    let group = &run.record().groups["g"];
    [&run.record().trainer, group].map(|record| (record.restarts, record.stage.name()))
}

#[test]
fn a_group_infers_each_batch_before_the_learners_train_on_it() {
    let mut run = fixed(0);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Wait));
    run.batch_fixed(2);
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    let activity = run.status(None, None, vec![], at(2)).activity;
    assert_eq!(activity, Some(Activity::Groups));
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Infer { step: 1 }));
    run.inferred("g", 1);
    assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
    let beside = run.instruct_group("g", 0);
    assert_eq!(beside, Ok(GroupInstruction::Infer { step: 2 }), "while step 1 is trained");
    run.inferred("g", 2);
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Wait));
}

#[test]
fn a_run_has_the_order_of_its_plan() {
    let spec: RLJobSpec = serde_json::from_value(json!({
        "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
        "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}},
        "training": {"steps": 9, "minibatches": 4},
        "rewards": [{"name": "right", "math": {}}],
        "algorithm": {"ppo": {"klCoefficient": 0.1}},
        "trainer": {"groups": [{"name": "g", "roles": ["Reference"]}]},
    }))
    .unwrap();
    let plan = plan(&spec).unwrap();
    let after_pack: Vec<Vec<String>> = plan.stages[5..7]
        .iter()
        .map(|stage| stage.lanes.iter().map(|lane| lane.workers.to_string()).collect())
        .collect();
    assert_eq!(after_pack, [["group g"], ["learners"]]);

    let mut run = fixed(1);
    assert!(!run.is_ready(1), "learners get no batch while the group infers");
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Infer { step: 1 }));
    run.inferred("g", 1);
    assert!(run.is_ready(1));
    assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
}

#[test]
fn a_restarted_run_infers_only_what_the_journal_lacks() {
    let facts = Facts {
        last_step: 3,
        fixed_step: 4,
        inferred: [1, 3].into(),
        checkpoints: [version(1, 0)].into(),
        ..Facts::default()
    };
    let mut run = grouped(facts);
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Infer { step: 2 }));
    assert_eq!(ask(&mut run, 0, 1), Instruction::Wait);
    run.inferred("g", 2);
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Infer { step: 4 }));
    assert_eq!(ask(&mut run, 0, 1), Instruction::train(2));
}

#[test]
fn a_failed_group_restarts_alone_and_so_does_the_trainer() {
    let mut run = fixed(1);
    let order = tell(&mut run, "g-0", of_group(exited("c", 0, 137)), at(3));
    assert_eq!(order, Order::Stop);
    assert_eq!(stages(&run), [(0, "Running"), (1, "Forming")]);
    let fenced = run.instruct_group("g", 0);
    assert!(matches!(fenced, Err(Rejection::Fenced { .. })), "{fenced:?}");
    let order = tell(&mut run, "g-0", of_group(exited("c", 0, 137)), at(4));
    let Order::Run(next) = order else { panic!("{order:?}") };
    assert_eq!((next.attempt, next.world_size, next.restore), (1, 1, None));
    tell(&mut run, "g-0", of_group(running("c", 1)), at(5));

    tell(&mut run, "t-0", exited("a", 0, 1), at(5));
    tell(&mut run, "t-1", exited("b", 0, 1), at(5));
    let [trainer, group] = stages(&run);
    assert_eq!((trainer.0, group), (1, (1, "Running")));
    assert_eq!(run.instruct_group("g", 1), Ok(GroupInstruction::Infer { step: 1 }));
}

#[test]
fn a_group_without_restarts_left_fails_the_run_and_lets_all_supervisors_go() {
    let mut run = fixed(1);
    for attempt in 0..2 {
        tell(&mut run, "g-0", of_group(running("c", attempt)), at(3));
        tell(&mut run, "g-0", of_group(exited("c", attempt, 1)), at(4));
        tell(&mut run, "g-0", of_group(exited("c", attempt, 1)), at(4));
    }
    assert_eq!(tell(&mut run, "t-0", running("a", 0), at(5)), Order::Stop);
    tell(&mut run, "t-0", exited("a", 0, 143), at(6));
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 143), at(6)), Order::Exit);
    let group = of_group(exited("c", 1, 1));
    assert_eq!(tell(&mut run, "g-0", group, at(6)), Order::Exit);
    let failure = run.record().trainer.last_failure.clone().unwrap();
    assert_eq!((run.phase(), failure.supervisor.as_deref()), (Phase::Failed, Some("g-0")));
}

#[test]
fn a_lost_pod_of_a_group_is_no_counted_restart() {
    let mut run = fixed(1);
    for seconds in [8, 16] {
        tell(&mut run, "t-0", running("a", 0), at(seconds));
        tell(&mut run, "t-1", running("b", 0), at(seconds));
    }
    assert_eq!(stages(&run), [(0, "Running"), (0, "Forming")]);
}

#[test]
fn a_drained_or_finished_run_ends_its_groups() {
    let mut run = fixed(1);
    run.set_desired(Desired { generation: 2, mode: Mode::Drain, ..desired() }).unwrap();
    assert_eq!(run.instruct_group("g", 0), Ok(GroupInstruction::Exit));
    assert_eq!(tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(3)), Order::Stop);
    assert_eq!(stages(&run)[1], (0, "Drained"));
    run.set_desired(Desired { generation: 3, ..desired() }).unwrap();
    tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(4));
    let order = tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(4));
    assert!(matches!(order, Order::Run(group) if group.attempt == 1));
}

#[test]
fn a_group_ends_with_the_evaluations_that_wait_and_continues_after_a_drain_before() {
    let evaluating =
        Settings { total_steps: 1, evaluation_every: vec![1], max_pending: Some(8), ..settings() };
    let facts = Facts { fixed_step: 1, inferred: [1].into(), ..Facts::default() };
    let mut run = grouped_with(evaluating, facts);
    for step in [0, 1] {
        loop {
            match ask(&mut run, 0, step) {
                Instruction::Export { version, path } => {
                    run.folder_ready(version.attempt, version, &path).unwrap();
                }
                Instruction::Checkpoint { version, path } => {
                    run.checkpoint_done(version.attempt, version, &path).unwrap();
                }
                _ => break,
            }
        }
    }
    assert!(run.record().exported, "{:?}", run.record());
    assert_eq!(run.record().evaluations.len(), 2);
    tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(3));
    assert_eq!(stages(&run)[1], (0, "Running"));

    run.set_desired(Desired { generation: 2, mode: Mode::Drain, ..desired() }).unwrap();
    tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(4));
    assert_eq!(stages(&run)[1], (0, "Drained"));
    run.set_desired(Desired { generation: 3, ..desired() }).unwrap();
    tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(5));
    let order = tell(&mut run, "g-0", of_group(exited("c", 0, 0)), at(5));
    assert!(matches!(order, Order::Run(ref group) if group.attempt == 1), "{order:?}");

    run.evaluated(0);
    run.evaluated(1);
    tell(&mut run, "g-0", of_group(running("c", 1)), at(6));
    assert_eq!(tell(&mut run, "g-0", of_group(exited("c", 1, 0)), at(6)), Order::Exit);
    assert_eq!(stages(&run)[1], (0, "Finished"));
}

#[test]
fn a_supervisor_of_an_unknown_group_is_rejected() {
    let mut run = fixed(0);
    let stray = SupervisorReport { group: Some("other".to_owned()), ..report("d", None, vec![]) };
    let error = run.handle_report("d-0", stray, at(2)).unwrap_err();
    assert_eq!(error.to_string(), "the run has no group `other` in trainer.groups");
}
