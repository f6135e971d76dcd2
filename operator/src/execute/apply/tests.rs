//! Tests of applied objects.

use super::*;

fn existing(data: &Value, is_terminating: bool) -> ObservedChild {
    let mut object =
        json!({"metadata": {"name": "c", "uid": "u-1", "resourceVersion": "7"}, "data": data});
    if is_terminating {
        object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
    }
    ObservedChild::new(Kind::ConfigMap, &serde_json::from_value(object).unwrap())
}

fn applied(desired: &DesiredChild, result: &ObservedChild) -> AppliedChild {
    let (desired, fingerprint) = (desired.digest, result.fingerprint);
    AppliedChild { desired, fingerprint, identity: None }
}

#[test]
fn children_that_differ_are_due_and_children_altered_by_the_server_are_due_once() {
    let desired = |data: Value| {
        DesiredChild::new(Kind::ConfigMap, &json!({"metadata": {"name": "c"}, "data": data}))
    };
    let (one, two) = (desired(json!({"a": "1"})), desired(json!({"a": "2"})));
    let same = existing(&json!({"a": "1", "other": "x"}), false);
    let altered = existing(&json!({"a": "one"}), false);
    let due = |desired, existing, applied: Option<&AppliedChild>| {
        is_due(Kind::ConfigMap, desired, existing, applied)
    };
    assert!(due(&one, None, None), "it does not exist");
    assert!(!due(&one, Some(&same), None), "it exists, and this process is new");
    assert!(due(&two, Some(&same), Some(&applied(&one, &same))), "the desired fields changed");
    assert!(due(&one, Some(&altered), None), "it differs");
    let known = applied(&one, &altered);
    assert!(!due(&one, Some(&altered), Some(&known)), "the server altered the applied fields");
    let known = applied(&one, &same);
    assert!(due(&one, Some(&altered), Some(&known)), "it was altered after the apply");
    assert!(!due(&one, Some(&existing(&json!({}), true)), None), "it is terminating");
    let known = applied(&one, &altered);
    assert!(is_due(Kind::Secret, &one, None, None), "a Secret is due once");
    assert!(!is_due(Kind::Secret, &one, None, Some(&known)), "a Secret is due once");
}

#[test]
fn an_apply_names_the_object_that_was_observed() {
    let metadata = |kind, known: Option<(&str, &str)>| {
        let known = known.map(|(uid, version)| (uid.to_owned(), version.to_owned()));
        with_precondition(json!({"metadata": {"name": "c"}}), kind, known)["metadata"].take()
    };
    assert_eq!(
        metadata(Kind::Service, Some(("u-1", "7"))),
        json!({"name": "c", "uid": "u-1", "resourceVersion": "7"})
    );
    assert_eq!(metadata(Kind::Service, None), json!({"name": "c", "resourceVersion": "1"}));
    assert_eq!(metadata(Kind::Secret, None), json!({"name": "c"}));
}
