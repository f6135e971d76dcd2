//! The rules of a run, one test each.

mod epochs;
mod exports;
mod instructions;
mod supervisors;
mod validation;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rljob_crds::job::WeightSyncMethod;
use rljob_crds::rollout::{BatchOrder, StaleSamples};
use rljob_protocol::desired::{CheckpointPolicy, Desired, Mode, RestartPolicy};
use rljob_protocol::learner::Instruction;
use rljob_protocol::status::{LearnerFailure, Phase};
use rljob_protocol::supervisor::{
    Group, HeartbeatAge, LearnerState, Order, Restore, SupervisorReport,
};
use rljob_protocol::version::Version;

use super::admission::Admission;
use super::instruct::EngineView;
use super::learner_group::GroupSize;
use super::work::Work;
use super::{Facts, Now, Record, Rejection, Run, Settings};

pub(super) fn settings() -> Settings {
    Settings {
        total_steps: 4,
        epochs: None,
        learners: true,
        model_directory: PathBuf::from("/model"),
        trainer: GroupSize { supervisors: 2, processes: 1 },
        groups: BTreeMap::new(),
        rollouts: true,
        evaluation_every: Vec::new(),
        accuracy: true,
        validation: false,
        max_pending: None,
        admission: Admission {
            batch_size: 1,
            total_steps: 4,
            max_staleness: 0,
            every_steps: 1,
            stale: StaleSamples::Keep,
            order: BatchOrder::Data,
        },
        method: WeightSyncMethod::Disk,
        engine_ranks: 1,
        restore_from: None,
        run_directory: PathBuf::from("/run"),
    }
}

pub(super) fn desired() -> Desired {
    Desired {
        epoch: 1,
        generation: 1,
        mode: Mode::Run,
        engines: Vec::new(),
        evaluation_engines: Vec::new(),
        reward_engines: Vec::new(),
        teacher_engines: Vec::new(),
        supervisors: Vec::new(),
        verifiers: Vec::new(),
        incidents: Vec::new(),
        checkpoint: CheckpointPolicy { every_steps: 2, keep_last: 2, export_every_steps: None },
        restart: RestartPolicy {
            max_restarts: 1,
            backoff_initial_seconds: 4,
            backoff_max_seconds: 300,
            hang_timeout_seconds: 600,
            rules: vec![],
        },
    }
}

pub(super) fn at(seconds: u64) -> Now {
    Now::from_secs(seconds)
}

pub(super) fn version(step: u32, attempt: u32) -> Version {
    Version { step, attempt }
}

/// A report of process `instance`; `a2` started after `a`.
pub(super) fn report(
    instance: &str,
    attempt: Option<u32>,
    learners: Vec<LearnerState>,
) -> SupervisorReport {
    SupervisorReport {
        instance: instance.to_owned(),
        started_at: instance.trim_start_matches(char::is_alphabetic).parse().unwrap_or(1),
        uid: None,
        group: None,
        address: format!("{instance}.example"),
        rendezvous_port: 7000,
        processes: 1,
        attempt,
        learners,
        terminating: false,
        gpu_faults: Vec::new(),
    }
}

pub(super) fn running(instance: &str, attempt: u32) -> SupervisorReport {
    report(instance, Some(attempt), vec![LearnerState::Running(HeartbeatAge::default())])
}

pub(super) fn exited(instance: &str, attempt: u32, code: i32) -> SupervisorReport {
    let log_tail = "2026-01-01T00:00:00.5Z  INFO rljob_learner: trained\nlast\nlines";
    report(
        instance,
        Some(attempt),
        vec![LearnerState::Exited { code, log_tail: log_tail.to_owned() }],
    )
}

fn group(attempt: u32, first_rank: u32, restore: Option<Version>) -> Order {
    Order::Run(Group {
        attempt,
        first_rank,
        world_size: 2,
        rendezvous_address: "a.example".to_owned(),
        rendezvous_port: 7000,
        restore: restore.map(|version| Restore {
            version,
            path: PathBuf::from(format!("/run/checkpoints/{version}")),
        }),
    })
}

/// Sends a report of a current supervisor and returns its order.
pub(super) fn tell(run: &mut Run, name: &str, report: SupervisorReport, now: Now) -> Order {
    run.handle_report(name, report, now).unwrap()
}

/// A run with two supervisors, `a` and `b`, whose learners run under attempt 0.
pub(super) fn started_with(settings: Settings, facts: Facts) -> Run {
    let checkpoints = facts.checkpoints.clone();
    let mut run = Run::new(settings, Record::default(), facts, 7, at(0));
    run.checkpoints_verified(checkpoints);
    run.set_desired(desired()).unwrap();
    tell(&mut run, "t-0", report("a", None, vec![]), at(0));
    tell(&mut run, "t-1", report("b", None, vec![]), at(0));
    tell(&mut run, "t-0", running("a", 0), at(1));
    tell(&mut run, "t-1", running("b", 0), at(1));
    run
}

pub(super) fn started() -> Run {
    started_with(settings(), Facts::default())
}

pub(super) fn engine(version: Option<Version>) -> EngineView {
    EngineView { name: "e-0".to_owned(), index: 0, usable: true, version, group: None }
}

/// The instruction at `steps`.
pub(super) fn ask(run: &mut Run, attempt: u32, steps: u32) -> Instruction {
    run.instruct(attempt, steps, &[engine(None)], at(2)).unwrap()
}

/// Publishes to disk where that is asked for, and fixes the next batch.
fn publish_and_fix(run: &mut Run, attempt: u32, steps: u32) {
    if let Instruction::PublishToDisk { version, path } = ask(run, attempt, steps) {
        run.folder_ready(attempt, version, &path).unwrap();
    }
    run.batch_fixed(steps + 1);
}

pub(super) fn restart(run: &mut Run, attempt: u32) {
    tell(run, "t-0", exited("a", attempt, 1), at(3));
    tell(run, "t-1", exited("b", attempt, 143), at(3));
    run.checkpoints_verified(run.checkpoints().clone());
    run.tick(at(60));
    tell(run, "t-0", exited("a", attempt, 1), at(60));
    tell(run, "t-1", exited("b", attempt, 143), at(60));
    run.tick(at(60));
}

#[test]
fn nothing_is_ordered_before_the_operator_speaks_nor_before_all_supervisors_are_there() {
    let mut run = Run::new(settings(), Record::default(), Facts::default(), 7, at(0));
    assert_eq!(tell(&mut run, "t-0", report("a", None, vec![]), at(0)), Order::Wait);
    run.set_desired(desired()).unwrap();
    assert_eq!(tell(&mut run, "t-0", report("a", None, vec![]), at(0)), Order::Stop);
    assert_eq!(run.phase(), Phase::Starting);
    assert_eq!(tell(&mut run, "t-1", report("b", None, vec![]), at(1)), group(0, 1, None));
    assert_eq!(tell(&mut run, "t-0", report("a", None, vec![]), at(1)), group(0, 0, None));
}

#[test]
fn ranks_follow_the_numbers_in_the_names() {
    let mut run = Run::new(settings(), Record::default(), Facts::default(), 7, at(0));
    run.set_desired(desired()).unwrap();
    tell(&mut run, "t-10", report("b", None, vec![]), at(0));
    assert_eq!(tell(&mut run, "t-9", report("a", None, vec![]), at(0)), group(0, 0, None));
    assert_eq!(tell(&mut run, "t-10", report("b", None, vec![]), at(0)), group(0, 1, None));
}

#[test]
fn a_learner_failure_restarts_the_group_from_the_newest_checkpoint_after_backoff() {
    let mut run = started();
    run.record.trainer.restarts_without_progress = 1;
    run.set_checkpoints(BTreeSet::from([version(2, 0), version(3, 0)]));
    assert_eq!(tell(&mut run, "t-0", exited("a", 0, 137), at(3)), Order::Stop);
    assert_eq!(run.phase(), Phase::Restarting);
    assert_eq!(tell(&mut run, "t-1", running("b", 0), at(3)), Order::Stop);
    assert_eq!(run.record().trainer.restarts, 0, "the verdict waits until all learners stopped");
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 1), at(4)), Order::Stop);
    let expected = LearnerFailure {
        reason: "LearnerKilled".to_owned(),
        message: "a learner of t-0 was killed by signal 9: last | lines".to_owned(),
        supervisor: Some("t-0".to_owned()),
        exit_code: Some(137),
    };
    assert_eq!(
        (run.record().trainer.restarts, run.record().trainer.last_failure.clone()),
        (1, Some(expected))
    );
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 1), at(5)), Order::Stop, "2 to 4 s of backoff");
    tell(&mut run, "t-0", exited("a", 0, 137), at(8));
    assert_eq!(
        tell(&mut run, "t-1", exited("b", 0, 1), at(8)),
        Order::Stop,
        "the checkpoints are not verified yet"
    );
    run.checkpoints_verified(BTreeSet::from([version(2, 0)]));
    assert_eq!(
        tell(&mut run, "t-1", exited("b", 0, 1), at(8)),
        group(1, 1, Some(version(2, 0))),
        "the newer one was refused"
    );
}

#[test]
fn a_spent_budget_fails_the_run_with_the_first_cause_and_lets_supervisors_go() {
    let mut run = started();
    restart(&mut run, 0);
    assert_eq!((run.record().trainer.attempt, run.record().trainer.restarts), (1, 1));
    tell(&mut run, "t-1", exited("b", 1, 70), at(61));
    tell(&mut run, "t-0", exited("a", 1, 1), at(61));
    assert_eq!(run.phase(), Phase::Failed);
    assert_eq!(run.record().trainer.restarts, 1);
    assert_eq!(
        run.record().trainer.last_failure.as_ref().unwrap().message,
        "a learner of t-1 exited with code 70: last | lines"
    );
    assert_eq!(tell(&mut run, "t-0", exited("a", 1, 1), at(62)), Order::Exit);
}

#[test]
fn an_older_attempt_is_fenced() {
    let mut run = started();
    let fenced = |sent| Rejection::Fenced { what: "attempt", sent, current: 1 };
    restart(&mut run, 0);
    assert_eq!(run.instruct(0, 0, &[], at(61)), Err(fenced(0)));
    assert_eq!(run.step_done(0, 1), Err(fenced(0)));
    assert_eq!(
        run.checkpoint_done(0, version(2, 0), "/run/checkpoints/step-2.attempt-0".as_ref()),
        Err(fenced(0))
    );
    assert_eq!(run.folder_ready(0, version(0, 0), "/x".as_ref()), Err(fenced(0)));
    assert_eq!(run.sender_ready(2, version(0, 0), 0), Err(fenced(2)));
}

#[test]
fn a_lower_epoch_is_refused_also_by_the_next_process() {
    let mut run = started();
    run.set_desired(Desired { epoch: 3, ..desired() }).unwrap();
    let refused = Err(Rejection::Fenced { what: "epoch", sent: 2, current: 3 });
    assert_eq!(run.set_desired(Desired { epoch: 2, ..desired() }), refused);
    let mut next = Run::new(settings(), run.record().clone(), Facts::default(), 8, at(0));
    assert_eq!(next.set_desired(Desired { epoch: 2, ..desired() }), refused);
}

#[test]
fn a_drain_writes_a_checkpoint_stops_the_learners_and_counts_no_restart() {
    let mut run = started_with(settings(), Facts { fixed_step: 1, ..Facts::default() });
    run.set_desired(Desired { mode: Mode::Drain, ..desired() }).unwrap();
    let path = PathBuf::from("/run/checkpoints/step-1.attempt-0");
    assert_eq!(
        ask(&mut run, 0, 1),
        Instruction::Checkpoint { version: version(1, 0), path: path.clone() }
    );
    assert_eq!(
        (ask(&mut run, 0, 1), run.phase(), run.work()),
        (Instruction::Wait, Phase::Draining, Work::None)
    );
    run.checkpoint_done(0, version(1, 0), &path).unwrap();
    assert_eq!(ask(&mut run, 0, 1), Instruction::Exit);
    tell(&mut run, "t-0", exited("a", 0, 0), at(3));
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 0), at(3)), Order::Stop);
    assert_eq!(run.phase(), Phase::Drained);
}

#[test]
fn a_drained_run_continues_with_a_new_attempt_from_its_checkpoint() {
    let mut run = started();
    run.set_desired(Desired { mode: Mode::Drain, ..desired() }).unwrap();
    assert_eq!(ask(&mut run, 0, 0), Instruction::Exit, "nothing is done yet");
    tell(&mut run, "t-0", exited("a", 0, 0), at(3));
    tell(&mut run, "t-1", exited("b", 0, 0), at(3));
    let mut next = Run::new(
        settings(),
        run.record().clone(),
        Facts { checkpoints: BTreeSet::from([version(2, 0)]), ..Facts::default() },
        8,
        at(0),
    );
    next.set_desired(Desired { epoch: 2, ..desired() }).unwrap();
    next.tick(at(0));
    next.checkpoints_verified(BTreeSet::from([version(2, 0)]));
    tell(&mut next, "t-0", report("c", None, vec![]), at(0));
    let Order::Run(group) = tell(&mut next, "t-1", report("d", None, vec![]), at(0)) else {
        panic!("not started")
    };
    assert_eq!((group.attempt, group.restore.unwrap().version), (1, version(2, 0)));
    assert_eq!(next.record().trainer.restarts, 0);
}

#[test]
fn a_restarted_coordinator_keeps_the_running_attempt() {
    let run = started();
    let mut next = Run::new(
        settings(),
        run.record().clone(),
        Facts { fixed_step: 1, ..Facts::default() },
        8,
        at(0),
    );
    assert_eq!(tell(&mut next, "t-0", running("a", 0), at(20)), Order::Wait, "no epoch yet");
    next.set_desired(desired()).unwrap();
    assert_eq!(tell(&mut next, "t-0", running("a", 0), at(21)), group(0, 0, None));
    assert_eq!(tell(&mut next, "t-1", running("b", 0), at(22)), group(0, 1, None));
    assert_eq!(ask(&mut next, 0, 0), Instruction::train(1));
    assert_eq!((next.record().trainer.attempt, next.record().trainer.restarts), (0, 0));
}

#[test]
fn input_that_cannot_be_used_stops_the_learners_and_fails_the_run() {
    let mut run = started();
    let failure = LearnerFailure {
        reason: "CoordinatorInput".to_owned(),
        message: "line 3".to_owned(),
        supervisor: None,
        exit_code: None,
    };
    run.fail(failure.clone());
    assert_eq!(tell(&mut run, "t-0", running("a", 0), at(2)), Order::Stop);
    tell(&mut run, "t-0", exited("a", 0, 143), at(3));
    assert_eq!(tell(&mut run, "t-1", exited("b", 0, 143), at(3)), Order::Exit);
    assert_eq!(
        (run.phase(), run.record().trainer.last_failure.clone()),
        (Phase::Failed, Some(failure))
    );
}

#[test]
fn supervised_training_needs_no_engine() {
    let mut run = started_with(Settings { rollouts: false, ..settings() }, Facts::default());
    assert_eq!(ask(&mut run, 0, 0), Instruction::Wait);
    assert_eq!(run.work(), Work::Prepare { step: 1 });
    run.batch_fixed(1);
    assert_eq!(ask(&mut run, 0, 0), Instruction::train(1));
}

#[test]
fn the_record_survives_its_json() {
    let mut run = started();
    tell(&mut run, "t-0", exited("a", 0, 137), at(3));
    let json = serde_json::to_string(run.record()).unwrap();
    assert_eq!(&serde_json::from_str::<Record>(&json).unwrap(), run.record());
}
