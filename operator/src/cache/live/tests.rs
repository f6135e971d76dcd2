//! What the leaves of a child tell, and what they leave out.

use super::*;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn set(image: &str, annotated: &str) -> Value {
    let template = |image: &str| json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "s", "annotations": {ANNOTATION_TEMPLATE: template(annotated).to_string()}},
        "spec": {"replicas": 2, "template": template(image), "selector": {"matchLabels": {"a": "b"}}},
    })
}

/// What the API server adds to what it was given.
fn as_it_lives(mut object: Value) -> Value {
    object["metadata"]["uid"] = "u-1".into();
    object["metadata"]["resourceVersion"] = "7".into();
    object["metadata"]["generation"] = 3.into();
    object["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "a/v1", "kind": "K", "name": "n", "uid": "job", "controller": true}]);
    object["spec"]["podManagementPolicy"] = "OrderedReady".into();
    object["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] =
        "/dev/termination-log".into();
    object["status"] = json!({"replicas": 1, "observedGeneration": 2});
    object
}

#[test]
fn what_lives_holds_what_was_applied_whatever_the_server_and_others_add() {
    let applied = set("i:1", "i:1");
    let live = Live::new(Kind::StatefulSet, &object(as_it_lives(applied.clone())));
    let seen = (&*live.uid, &*live.version, live.owner.as_deref(), live.terminating);
    assert_eq!(seen, ("u-1", "7", Some("job"), false));
    let wants = |value: &Value| live.holds(&Wanted::new(Kind::StatefulSet, value));
    assert!(wants(&applied));
    let mut scaled = applied.clone();
    scaled["spec"]["replicas"] = 3.into();
    let mut labelled = applied.clone();
    labelled["metadata"]["labels"] = json!({"rljob.dev/job": "s"});
    assert_eq!([&set("i:2", "i:2"), &scaled, &labelled].map(wants), [false; 3]);
    let expected = LiveSet {
        replicas: 2,
        settled: false,
        existing: 1,
        template: pin::template_text(&applied).map(|text| pin::mark(text).into()),
    };
    assert_eq!(live.set, Some(expected));
}

#[test]
fn a_template_that_somebody_has_altered_is_seen_and_changes_the_fingerprint() {
    let live = |image: &str| Live::new(Kind::StatefulSet, &object(as_it_lives(set(image, "i:1"))));
    let wanted = Wanted::new(Kind::StatefulSet, &set("i:1", "i:1"));
    assert!(live("i:1").holds(&wanted) && !live("i:2").holds(&wanted));
    assert_ne!(live("i:1").fingerprint, live("i:2").fingerprint);
}

#[test]
fn what_is_wanted_as_it_lives_is_held_until_somebody_alters_it() {
    let applied = set("i:1", "i:1");
    let mut kept = applied.clone();
    kept["metadata"]["annotations"][ANNOTATION_TEMPLATE] =
        pin::mark(pin::template_text(&applied).unwrap()).into();
    kept["spec"]["template"] = json!({});
    let wanted = Wanted::new(Kind::StatefulSet, &kept);
    assert_eq!(wanted, Wanted::new(Kind::StatefulSet, &applied));
    let mut marked = applied.clone();
    marked["metadata"]["annotations"] = kept["metadata"]["annotations"].clone();
    let holds = |object: Value| {
        Live::new(Kind::StatefulSet, &self::object(as_it_lives(object))).holds(&wanted)
    };
    assert_eq!(
        [applied, set("i:2", "i:1"), set("i:1", "i:2"), marked].map(holds),
        [true, false, false, false]
    );
}

#[test]
fn an_annotation_that_is_no_template_pins_nothing() {
    let pinned = |annotation: &str| {
        let mut object = as_it_lives(set("i:1", "i:1"));
        object["metadata"]["annotations"][ANNOTATION_TEMPLATE] = annotation.into();
        Live::new(Kind::StatefulSet, &self::object(object)).set.unwrap().template
    };
    assert_eq!(["", "{", "[1]", &pin::mark("{}")].map(pinned), [None, None, None, None]);
}

#[test]
fn versions_generations_and_status_do_not_change_the_fingerprint() {
    let one = as_it_lives(set("i:1", "i:1"));
    let mut other = one.clone();
    other["metadata"]["resourceVersion"] = "9".into();
    other["metadata"]["generation"] = 4.into();
    other["status"] = json!({"replicas": 2});
    let fingerprint = |value: Value| Live::new(Kind::StatefulSet, &object(value)).fingerprint;
    assert_eq!(fingerprint(one), fingerprint(other));
}

#[test]
fn a_part_is_known_in_the_whole() {
    let live = json!({"a": {"b": [1, {"c": 2, "d": 3}], "e": "x"}});
    for (wanted, held) in [
        (json!({}), true),
        (json!({"a": {"e": "x", "f": {}}}), true),
        (json!({"a": {"b": [1, {"c": 2}]}}), true),
        (json!({"a": {"b": [1]}, "f": []}), false),
        (json!({"a": {"e": "x"}, "f": []}), true),
        (json!({"a": {"b": []}}), false),
        (json!({"a": {"b": [{"c": 2}, 1]}}), false),
        (json!({"a": "e"}), false),
        (json!({"a": {"b": [1, {"c": 3}]}}), false),
        (json!({"g": 1}), false),
    ] {
        assert_eq!(Leaves::of(&live).contain(&Leaves::of(&wanted)), held, "{wanted}");
    }
}

#[test]
fn an_altered_run_configuration_pins_nothing() {
    let map = |text: &str| json!({"metadata": {"name": "m", "annotations": {ANNOTATION_DIGEST: pin::digest("one")}}, "data": {RUN_CONFIG_FILE: text}});
    let run_config = |text: &str| Live::new(Kind::ConfigMap, &object(map(text))).run_config;
    assert_eq!(
        ["one", "two", &pin::mark("one")].map(run_config),
        [Some(pin::mark("one").into()), None, None]
    );
}

#[test]
fn a_changed_run_configuration_is_seen() {
    let map = |text: &str| json!({"metadata": {"name": "m"}, "data": {RUN_CONFIG_FILE: text}});
    let live = Live::new(Kind::ConfigMap, &object(map("one")));
    assert_eq!(
        live.run_config.as_deref(),
        Some(&*pin::mark("one")),
        "of an operator that wrote no digest"
    );
    assert!(
        live.holds(&Wanted::new(Kind::ConfigMap, &map("one")))
            && !live.holds(&Wanted::new(Kind::ConfigMap, &map("two")))
    );
}
