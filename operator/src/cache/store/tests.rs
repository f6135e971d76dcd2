//! Tests of the cache.

use super::*;
use serde_json::json;

fn pod(name: &str, job: &str, version: &str) -> Pod {
    let pod = json!({
        "metadata": {
            "name": name,
            "namespace": "lab",
            "resourceVersion": version,
            "labels": {LABEL_JOB: job},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn names(cache: &Cache, job: &str) -> Vec<String> {
    cache.pods("lab", job).iter().map(|pod| pod.name_any()).collect()
}

#[test]
fn pods_are_found_by_their_current_label() {
    let cache = Cache::default();
    assert_eq!(
        cache.handle_pod(Event::Apply(pod("p-0", "p", "1"))),
        [ObjectRef::new("p").within("lab")]
    );
    cache.handle_pod(Event::Apply(pod("p-1", "p", "2")));
    assert_eq!(names(&cache, "p"), ["p-0", "p-1"]);
    cache.handle_pod(Event::Apply(pod("p-0", "q", "3")));
    assert_eq!(
        (names(&cache, "p"), names(&cache, "q")),
        (vec!["p-1".to_owned()], vec!["p-0".to_owned()])
    );
    cache.handle_pod(Event::Delete(pod("p-1", "p", "4")));
    assert!(names(&cache, "p").is_empty());
    assert_eq!(cache.pods("lab", "q")[0].spec.node_name.as_deref(), Some("node-1"));
}

#[test]
fn a_pod_missing_from_a_list_is_dropped_and_its_job_is_reconciled() {
    let cache = Cache::default();
    cache.handle_pod(Event::Apply(pod("p-0", "p", "1")));
    cache.handle_pod(Event::Init);
    assert_eq!(cache.handle_pod(Event::InitDone), [ObjectRef::new("p").within("lab")]);
    assert!(names(&cache, "p").is_empty());
}

#[test]
fn passes_wait_until_every_kind_is_listed() {
    let cache = Cache::default();
    for kind in Kind::WATCHED {
        cache.handle_child(kind, Event::Init);
        cache.handle_child(kind, Event::InitDone);
    }
    assert!(!*cache.listed.borrow());
    cache.handle_pod(Event::Init);
    cache.handle_pod(Event::InitDone);
    assert!(*cache.listed.borrow());
}

#[test]
fn a_change_reconciles_the_owner_and_a_missing_child_every_possible_owner() {
    let object = json!({
        "metadata": {
            "name": "a-b-run",
            "namespace": "lab",
            "resourceVersion": "1",
            "labels": {LABEL_JOB: "misleading"},
            "ownerReferences": [{
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "name": "a-b",
                "uid": "u",
                "controller": true,
            }],
        },
    });
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let job = |name: &str| ObjectRef::<RLJob>::new(name).within("lab");
    let cache = Cache::default();
    assert_eq!(cache.handle_child(Kind::ConfigMap, Event::Apply(object)), [job("a-b")]);
    cache.handle_child(Kind::ConfigMap, Event::Init);
    assert_eq!(
        cache.handle_child(Kind::ConfigMap, Event::InitDone),
        [job("a"), job("a-b"), job("a-b-run")]
    );
    assert_eq!(jobs_by_name("lab", "rljob-a-0e264"), [job("a"), job("a-0e264")]);
}

#[test]
fn children_are_found_by_their_current_owner() {
    let cache = Cache::default();
    let service = |name: &str, owner: &str, version: &str| -> DynamicObject {
        let owner = json!({
            "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sums", "uid": owner,
            "controller": true,
        });
        let metadata = json!({
            "name": name, "namespace": "lab", "resourceVersion": version,
            "ownerReferences": [owner],
        });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    };
    let names = |uid: &str| -> Vec<String> {
        cache.children_of("lab", uid).into_iter().map(|((_, name), _)| name).collect()
    };
    cache.handle_child(Kind::Service, Event::Apply(service("sums-trainer", "first", "1")));
    cache.store_written(Kind::Service, &service("sums-evaluation", "first", "2"));
    assert_eq!(names("first"), ["sums-evaluation", "sums-trainer"]);
    cache.handle_child(Kind::Service, Event::Apply(service("sums-trainer", "second", "3")));
    assert_eq!((names("first").len(), names("second")), (1, vec!["sums-trainer".to_owned()]));
    cache.drop_deleted(Kind::Service, "lab", "sums-evaluation", "2");
    cache.handle_child(Kind::Service, Event::Init);
    cache.handle_child(Kind::Service, Event::InitDone);
    assert_eq!((names("first"), names("second")), (Vec::new(), Vec::new()));
}
