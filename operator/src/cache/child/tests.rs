//! Tests of fingerprints and field hashes.

use super::*;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn set(image: &str, annotated: &str) -> Value {
    let template = |image: &str| {
        json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": image}]},
        })
    };
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {
            "name": "s",
            "annotations": {ANNOTATION_TEMPLATE: template(annotated).to_string()},
        },
        "spec": {
            "replicas": 2,
            "template": template(image),
            "selector": {"matchLabels": {"a": "b"}},
        },
    })
}

/// The object as the API server returns it.
fn as_stored(mut object: Value) -> Value {
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
fn a_stored_object_satisfies_the_applied_one_with_the_fields_that_a_server_adds() {
    let applied = set("i:1", "i:1");
    let observed = ObservedChild::new(Kind::StatefulSet, &object(as_stored(applied.clone())));
    let identity =
        (&*observed.uid, &*observed.version, observed.owner.as_deref(), observed.terminating);
    assert_eq!(identity, ("u-1", "7", Some("job"), false));
    let satisfies =
        |value: &Value| observed.satisfies(&DesiredChild::new(Kind::StatefulSet, value));
    assert!(satisfies(&applied));
    let mut scaled = applied.clone();
    scaled["spec"]["replicas"] = 3.into();
    let mut labelled = applied.clone();
    labelled["metadata"]["labels"] = json!({"rljob.dev/job": "s"});
    assert_eq!([&set("i:2", "i:2"), &scaled, &labelled].map(satisfies), [false; 3]);
    let expected = LiveSet {
        replicas: 2,
        settled: false,
        existing: 1,
        template: pin::template_text(&applied).map(|text| pin::mark(text).into()),
    };
    assert_eq!(observed.set, Some(expected));
}

#[test]
fn an_altered_template_is_detected_and_changes_the_fingerprint() {
    let observed =
        |image: &str| ObservedChild::new(Kind::StatefulSet, &object(as_stored(set(image, "i:1"))));
    let desired = DesiredChild::new(Kind::StatefulSet, &set("i:1", "i:1"));
    assert!(observed("i:1").satisfies(&desired) && !observed("i:2").satisfies(&desired));
    assert_ne!(observed("i:1").fingerprint, observed("i:2").fingerprint);
}

#[test]
fn a_pinned_template_is_satisfied_until_it_is_altered() {
    let applied = set("i:1", "i:1");
    let mut kept = applied.clone();
    kept["metadata"]["annotations"][ANNOTATION_TEMPLATE] =
        pin::mark(pin::template_text(&applied).unwrap()).into();
    kept["spec"]["template"] = json!({});
    let desired = DesiredChild::new(Kind::StatefulSet, &kept);
    assert_eq!(desired, DesiredChild::new(Kind::StatefulSet, &applied));
    let mut marked = applied.clone();
    marked["metadata"]["annotations"] = kept["metadata"]["annotations"].clone();
    let satisfies = |object: Value| {
        ObservedChild::new(Kind::StatefulSet, &self::object(as_stored(object))).satisfies(&desired)
    };
    assert_eq!(
        [applied, set("i:2", "i:1"), set("i:1", "i:2"), marked].map(satisfies),
        [true, false, false, false]
    );
}

#[test]
fn an_annotation_without_a_template_pins_nothing() {
    let pinned = |annotation: &str| {
        let mut object = as_stored(set("i:1", "i:1"));
        object["metadata"]["annotations"][ANNOTATION_TEMPLATE] = annotation.into();
        ObservedChild::new(Kind::StatefulSet, &self::object(object)).set.unwrap().template
    };
    assert_eq!(["", "{", "[1]", &pin::mark("{}")].map(pinned), [None, None, None, None]);
}

#[test]
fn versions_generations_and_status_do_not_change_the_fingerprint() {
    let one = as_stored(set("i:1", "i:1"));
    let mut other = one.clone();
    other["metadata"]["resourceVersion"] = "9".into();
    other["metadata"]["generation"] = 4.into();
    other["status"] = json!({"replicas": 2});
    let fingerprint =
        |value: Value| ObservedChild::new(Kind::StatefulSet, &object(value)).fingerprint;
    assert_eq!(fingerprint(one), fingerprint(other));
}

#[test]
fn objects_may_have_more_fields_and_lists_may_not_have_more_items() {
    let observed = json!({"a": {"b": [1, {"c": 2, "d": 3}], "e": "x"}});
    for (desired, expected) in [
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
        let contained = FieldHashes::of(&observed).contain(&FieldHashes::of(&desired));
        assert_eq!(contained, expected, "{desired}");
    }
}

#[test]
fn an_altered_run_configuration_pins_nothing() {
    let map = |text: &str| {
        json!({
            "metadata": {"name": "m", "annotations": {ANNOTATION_DIGEST: pin::digest("one")}},
            "data": {RUN_CONFIG_FILE: text},
        })
    };
    let run_config =
        |text: &str| ObservedChild::new(Kind::ConfigMap, &object(map(text))).run_config;
    assert_eq!(
        ["one", "two", &pin::mark("one")].map(run_config),
        [Some(pin::mark("one").into()), None, None]
    );
}

#[test]
fn a_changed_run_configuration_is_detected() {
    let map = |text: &str| json!({"metadata": {"name": "m"}, "data": {RUN_CONFIG_FILE: text}});
    let observed = ObservedChild::new(Kind::ConfigMap, &object(map("one")));
    assert_eq!(
        observed.run_config.as_deref(),
        Some(&*pin::mark("one")),
        "an earlier release wrote no digest"
    );
    assert!(
        observed.satisfies(&DesiredChild::new(Kind::ConfigMap, &map("one")))
            && !observed.satisfies(&DesiredChild::new(Kind::ConfigMap, &map("two")))
    );
}
