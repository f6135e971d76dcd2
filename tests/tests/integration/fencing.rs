//! Fencing: a superseded `rljob run` session that resumes, as after a node partition, changes
//! nothing in the run directory.

use std::fs;

use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_tests::process::wait_until;
use rustix::process::Signal;

use crate::exact_recovery::{RunUnderFaults, Victim, practise};
use crate::journal::query;
use crate::local_run::{LIMIT, LocalRun, assert_same_weights, baseline};

/// A checkpoint at every step, so that a learner can be paused while it writes one.
const CHECKPOINTS: &str = "practise:spec.checkpoint.everySteps=1";

#[test]
fn a_superseded_coordinator_and_trainer_group_change_nothing() {
    let mut old = practise("fenced", &[CHECKPOINTS], &[]);
    old.wait_for_steps(1);
    let (writer, torn) = old.pause_learner_during_write();
    let others = [Victim::Coordinator, Victim::Supervisor, Victim::Learner(1)]
        .map(|victim| old.pause(victim));
    old.local.signal(Signal::STOP);
    let directory = old.local.runs.join("default/practise");
    // The lock file of `rljob run` rejects a second session; clusters have no such lock.
    fs::remove_file(directory.join("lock")).unwrap();

    let new = RunUnderFaults::new(
        LocalRun::start_with(&baseline().folder, "fenced", &["--set", CHECKPOINTS]),
        "practise",
    );
    new.wait_for_steps(8);
    let coordinator = others[0].pid();
    others.into_iter().chain([writer]).for_each(crate::exact_recovery::PausedProcess::resume);
    let ended = || {
        fs::read_to_string(format!("/proc/{coordinator}/stat"))
            .is_ok_and(|stat| stat.contains(") Z "))
    };
    wait_until("the old coordinator to exit", LIMIT, || Ok(ended()))
        .unwrap_or_else(|error| panic!("{error:#}\n{:#?}", new.traces()));

    assert_same_weights(new.local);
    assert_eq!(query(&directory, "SELECT count(*), max(step) FROM steps"), "12|12");
    let log = fs::read_to_string(directory.join("logs/coordinator.log")).unwrap();
    assert!(
        log.contains(
            "error: this coordinator (epoch 1) was replaced by that of epoch 2 of the job"
        ),
        "{log}"
    );
    assert!(
        !directory.join(CHECKPOINTS_DIR).join(&torn).join("manifest.json").exists(),
        "{torn} was committed"
    );
    drop(old);
}
