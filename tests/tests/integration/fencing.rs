//! Who was replaced and comes back changes nothing: a session of `rljob run` is stopped whole, as a
//! node that is cut off, and another one goes on in the same run directory.

use std::fs;

use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_tests::process::wait_until;
use rustix::process::Signal;

use crate::exact_recovery::{Struck, Victim, practise};
use crate::journal::query;
use crate::local_run::{LIMIT, LocalRun, assert_same_weights, undisturbed};

/// Many chances to stop a learner in one.
const CHECKPOINTS: &str = "practise:spec.checkpoint.everySteps=1";

#[test]
fn an_old_coordinator_and_an_old_trainer_group_that_come_back_change_nothing() {
    let mut old = practise("fenced", &[CHECKPOINTS], &[]);
    old.wait_for_steps(1);
    let (writer, torn) = old.freeze_learner_that_writes();
    let others = [Victim::Coordinator, Victim::Supervisor, Victim::Learner(1)]
        .map(|victim| old.freeze(victim));
    old.local.signal(Signal::STOP);
    let directory = old.local.runs.join("default/practise");
    // Only the lock of `rljob run` keeps a second session out; in a cluster there is no such file.
    fs::remove_file(directory.join("lock")).unwrap();

    let new = Struck::new(
        LocalRun::start_with(undisturbed().folder.path(), "fenced", &["--set", CHECKPOINTS]),
        "practise",
    );
    new.wait_for_steps(8);
    let coordinator = others[0].pid();
    others.into_iter().chain([writer]).for_each(crate::exact_recovery::Frozen::thaw);
    let ended = || {
        fs::read_to_string(format!("/proc/{coordinator}/stat"))
            .is_ok_and(|stat| stat.contains(") Z "))
    };
    wait_until("the old coordinator to end", LIMIT, || Ok(ended()))
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
