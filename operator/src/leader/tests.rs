//! Tests of leader election.

use super::*;

#[test]
fn a_lease_is_taken_if_it_is_free_or_its_holder_is_late() {
    let lease = |holder: &str| LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    };
    for (case, spec, unchanged, expected) in [
        ("does not exist", None, 0, Step::Create),
        ("never held", Some(LeaseSpec::default()), 0, Step::Take),
        ("released", Some(lease("")), 0, Step::Take),
        ("held by this candidate", Some(lease("me")), 14, Step::Renew),
        ("held by another, renewed", Some(lease("you")), 14, Step::Wait),
        ("held by another, late", Some(lease("you")), 15, Step::Take),
    ] {
        assert_eq!(step(spec.as_ref(), "me", Duration::from_secs(unchanged)), expected, "{case}");
    }
}

#[test]
fn transitions_of_a_lease_count_other_holders_and_end_at_their_limit() {
    let lease = |holder: &str, transitions| LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_transitions: transitions,
        ..LeaseSpec::default()
    };
    for (old, expected) in [
        (None, 0),
        (Some(lease("you", None)), 0),
        (Some(lease("me", Some(3))), 3),
        (Some(lease("you", Some(3))), 4),
        (Some(lease("you", Some(i32::MAX))), i32::MAX),
    ] {
        assert_eq!(held(old.as_ref(), "me").lease_transitions, Some(expected), "{old:?}");
    }
}

#[test]
fn a_term_expires() {
    let term = Term::inactive();
    let now = term.start + Duration::from_secs(1);
    assert!(!term.is_active_at(now));
    term.renew(now, TERM);
    assert!(term.is_active_at(now));
    assert!(!term.is_active_at(now + TERM), "the term has expired");
    assert!(Term::endless().is_active_at(now));
}
