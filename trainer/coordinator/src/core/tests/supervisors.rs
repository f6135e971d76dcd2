//! Supervisors that are silent, lost or replaced.

use rljob_protocol::desired::{Desired, SupervisorIdentity};
use rljob_protocol::status::Phase;
use rljob_protocol::supervisor::{Order, SupervisorReport};

use super::{at, desired, exited, group, report, running, settings, started, tell};
use crate::core::{Facts, Record, Rejection, Run};

/// A report of the pod `uid`.
fn of_pod(uid: &str, report: SupervisorReport) -> SupervisorReport {
    SupervisorReport { uid: Some(uid.to_owned()), ..report }
}

/// The desired state with a pod of the name `t-0`.
fn listing(uid: &str) -> Desired {
    let pod = SupervisorIdentity { name: "t-0".to_owned(), uid: uid.to_owned() };
    Desired { supervisors: vec![pod], ..desired() }
}

#[test]
fn a_restarted_container_of_a_deleted_pod_never_replaces_the_listed_pod() {
    let mut run = Run::new(settings(), Record::default(), Facts::default(), 8, at(0));
    run.set_desired(listing("new")).unwrap();
    tell(&mut run, "t-0", of_pod("new", report("a1", None, vec![])), at(1));
    tell(&mut run, "t-1", report("b", None, vec![]), at(1));
    let replaced = Err(Rejection::Replaced("t-0".to_owned()));
    let returned = || of_pod("old", report("a2", None, vec![]));
    assert_eq!(run.handle_report("t-0", returned(), at(2)), replaced, "although it started later");
    let mut next = Run::new(settings(), run.record().clone(), Facts::default(), 8, at(0));
    next.set_desired(listing("new")).unwrap();
    assert_eq!(next.handle_report("t-0", returned(), at(1)), replaced, "known from the record");
    assert!(matches!(
        next.handle_report("t-0", of_pod("new", running("a1", 0)), at(1)),
        Ok(Order::Run(_))
    ));
}

#[test]
fn a_pod_that_the_list_lacks_is_accepted_until_the_listed_one_reports() {
    let mut run = Run::new(settings(), Record::default(), Facts::default(), 8, at(0));
    run.set_desired(listing("old")).unwrap();
    let newer = || of_pod("new", report("a2", None, vec![]));
    assert!(run.handle_report("t-0", newer(), at(1)).is_ok(), "the operator is down");
    run.set_desired(listing("newest")).unwrap();
    let newest = || of_pod("newest", report("a1", None, vec![]));
    assert!(run.handle_report("t-0", newest(), at(2)).is_ok());
    let replaced = Err(Rejection::Replaced("t-0".to_owned()));
    assert_eq!(run.handle_report("t-0", newer(), at(3)), replaced);
}

#[test]
fn supervisors_survive_a_time_in_which_the_coordinator_processed_no_reports() {
    let mut run = started();
    run.extend_deadlines(at(100));
    tell(&mut run, "t-0", running("a", 0), at(105));
    assert_eq!(tell(&mut run, "t-1", running("b", 0), at(106)), group(0, 1, None));
    tell(&mut run, "t-0", running("a", 0), at(117));
    assert_eq!(run.phase(), Phase::Restarting, "t-1 was silent for 11 s");
}

#[test]
fn a_lost_supervisor_is_not_counted_even_if_its_peers_fail_first() {
    let mut run = started();
    tell(&mut run, "t-0", exited("a", 0, 1), at(3));
    tell(&mut run, "t-0", exited("a", 0, 1), at(12));
    assert_eq!(run.phase(), Phase::Restarting, "the other one may still answer");
    tell(&mut run, "t-1", report("b2", None, vec![]), at(13));
    assert_eq!(
        (
            run.record().trainer.attempt,
            run.record().trainer.restarts,
            run.record().trainer.last_failure.clone()
        ),
        (1, 0, None)
    );
    assert_eq!(tell(&mut run, "t-0", exited("a", 0, 1), at(13)), group(1, 0, None));
}

#[test]
fn an_older_supervisor_of_the_same_name_is_rejected_while_the_newer_reports() {
    let mut run = started();
    tell(&mut run, "t-0", report("a2", None, vec![]), at(2));
    let refused = Err(Rejection::Replaced("t-0".to_owned()));
    assert_eq!(run.handle_report("t-0", running("a", 0), at(2)), refused);
    tell(&mut run, "t-1", exited("b", 0, 137), at(2));
    tell(&mut run, "t-0", report("a2", None, vec![]), at(2));
    assert_eq!(
        (
            run.record().trainer.stage.name(),
            run.record().trainer.attempt,
            run.record().trainer.restarts
        ),
        ("Running", 1, 0),
        "the old one's pod is lost, which counts for nothing"
    );
    assert_eq!(run.handle_report("t-0", running("a", 0), at(12)), refused);
    assert_eq!(
        run.handle_report("t-0", running("a", 0), at(13)),
        Ok(Order::Stop),
        "the newer one stopped reporting"
    );
}

#[test]
fn a_returning_old_supervisor_never_replaces_its_successor() {
    let mut run = started();
    tell(&mut run, "t-0", report("a2", None, vec![]), at(2));
    tell(&mut run, "t-1", exited("b", 0, 137), at(2));
    tell(&mut run, "t-0", report("a2", None, vec![]), at(2));
    let next = || {
        let mut next = Run::new(settings(), run.record().clone(), Facts::default(), 8, at(0));
        next.set_desired(desired()).unwrap();
        next
    };
    let refused = Err(Rejection::Replaced("t-0".to_owned()));
    let mut old_first = next();
    assert_eq!(
        old_first.handle_report("t-0", running("a", 0), at(1)),
        refused,
        "it knows who is in the group"
    );
    assert!(
        matches!(tell(&mut old_first, "t-0", running("a2", 1), at(1)), Order::Run(_)),
        "its learners continue"
    );
    let mut newer = next();
    tell(&mut newer, "t-0", report("a3", None, vec![]), at(0));
    assert_eq!(newer.handle_report("t-0", running("a2", 1), at(1)), refused);
    let mut idle = Run::new(settings(), Record::default(), Facts::default(), 8, at(0));
    idle.set_desired(desired()).unwrap();
    tell(&mut idle, "t-0", running("a", 0), at(0));
    tell(&mut idle, "t-0", report("a2", None, vec![]), at(0));
    assert_eq!(
        idle.handle_report("t-0", running("a", 0), at(1)),
        refused,
        "the old one was heard first"
    );
}

#[test]
fn a_supervisor_that_is_silent_for_more_than_ten_seconds_is_lost() {
    let mut run = started();
    tell(&mut run, "t-0", running("a", 0), at(11));
    assert_eq!(run.record().trainer.stage.name(), "Running");
    assert_eq!(tell(&mut run, "t-0", running("a", 0), at(12)), Order::Stop);
    tell(&mut run, "t-0", exited("a", 0, 143), at(13));
    assert_eq!((run.record().trainer.attempt, run.record().trainer.restarts), (1, 0));
}
