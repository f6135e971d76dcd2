//! Failures that no restart mends.

use rljob_protocol::status::{LearnerFailure, Phase};

use super::super::tests::{at, exited, started};
use super::{LEARNER_INPUT, Stage};

#[test]
fn a_learner_that_cannot_use_its_input_fails_the_run_with_its_words_and_spends_no_restart_even_if_its_peer_is_heard_first() {
    for (first, second) in [(("t-0", "a", 1), ("t-1", "b", 65)), (("t-1", "b", 65), ("t-0", "a", 1))] {
        let mut run = started();
        for (name, instance, code) in [first, second] {
            run.supervisor(name, exited(instance, 0, code), at(3));
        }
        let expected = LearnerFailure {
            reason: LEARNER_INPUT.to_owned(),
            message: "a learner of t-1 exited with code 65: last | lines".to_owned(),
            supervisor: Some("t-1".to_owned()),
            exit_code: Some(65),
        };
        assert_eq!((run.phase(), run.record().restarts, run.record().last_failure.clone()), (Phase::Failed, 0, Some(expected)), "{first:?} first");
    }
}

#[test]
fn what_is_found_wrong_after_the_end_is_no_failure_of_the_run() {
    let mut run = started();
    run.record.stage = Stage::Finished;
    run.fail(LearnerFailure { reason: "CoordinatorInput".to_owned(), message: "the data is gone".to_owned(), supervisor: None, exit_code: None });
    assert_eq!((run.phase(), run.record().last_failure.clone()), (Phase::Finished, None));
}
