//! What the operator makes of a job, whose it is, and what it leaves alone.

use std::fs;
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::{binary, kubernetes};
use rljob_tests::process::{run, wait_until};
use serde_json::{Value, json};

use super::operator::{KINDS, LIMIT, OWN, Operator, field, namespace_with, wait_for_condition, wait_for_pods};
use super::{cluster, job};

/// Where `whole` lacks something of `part`, or has it otherwise: lists have to be equal in length, objects may have more fields.
fn differences(path: &str, whole: &Value, part: &Value, found: &mut Vec<String>) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, part) in part {
                differences(&format!("{path}.{key}"), whole.get(key).unwrap_or(&Value::Null), part, found);
            }
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            for (index, (whole, part)) in whole.iter().zip(part).enumerate() {
                differences(&format!("{path}[{index}]"), whole, part, found);
            }
        }
        _ if whole == part => {}
        _ => found.push(format!("{path}: {whole} is not {part}")),
    }
}

/// What `rljob render` prints for the job as it is in the cluster.
fn rendered(namespace: &Namespace, image: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.json");
    fs::write(&file, namespace.kubectl.run(&["get", "rljob/sample", "--output=json"]).unwrap()).unwrap();
    let text = run(Command::new(binary("rljob").unwrap()).args(["render", "--image", image, "--file"]).arg(&file)).unwrap();
    text.split("---\n").skip(1).map(|document| serde_yaml::from_str(document).unwrap()).collect()
}

#[test]
fn the_children_are_what_render_prints_and_belong_to_the_job() {
    let patch = json!({"spec": {
        "volumes": [{"name": "data", "mountPath": "/data", "configMap": {"name": "data"}}],
        "inference": {"replicas": 2, "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}},
        "trainer": {"replicas": 2, "processesPerReplica": 2},
    }});
    let namespace = namespace_with("children", &patch);
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 5);
    let rendered = rendered(&namespace, "rljob:a");
    assert_eq!(rendered.len(), 10, "Secret, ConfigMap, NetworkPolicy, PodDisruptionBudget, and a Service and a StatefulSet of each role");
    for mut object in rendered {
        let name = format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let live = namespace.kubectl.get(&["--show-managed-fields", &name]).unwrap();
        // Tokens are the cluster's secret.
        if object["kind"] == "Secret" {
            assert_eq!(keys(&live["data"]), keys(&object["data"]));
            object.as_object_mut().unwrap().remove("data");
        }
        let mut found = Vec::new();
        differences(&name, &live, &object, &mut found);
        assert_eq!(found, Vec::<String>::new());
        let manager = &live["metadata"]["managedFields"][0];
        assert_eq!((&manager["manager"], &manager["operation"]), (&json!("rljob.dev/operator"), &json!("Apply")), "{name}");
    }
    assert!(!operator.words().contains("forbidden"), "the service account lacks a right:\n{}", operator.words());
}

fn keys(object: &Value) -> Vec<&String> {
    object.as_object().into_iter().flat_map(|fields| fields.keys()).collect()
}

#[test]
fn a_deleted_job_leaves_nothing_behind() {
    let namespace = namespace_with("delete", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    let left = || namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]);
    wait_until("the job's objects to go", LIMIT, || Ok(left()?.is_empty())).unwrap();
}

#[test]
fn a_refused_child_stalls_the_job_until_it_is_accepted() {
    let namespace = Namespace::create(cluster(), "quota").unwrap();
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/statefulsets.apps": "0"}}});
    namespace.kubectl.apply(&quota.to_string()).unwrap();
    let operator = Operator::start(&namespace, "rljob:a");
    namespace.kubectl.apply(&job().to_string()).unwrap();
    wait_for_condition(&namespace, "Stalled");
    let summary = ".status.conditions[?(@.type=='Succeeded')]";
    assert_eq!(field(&namespace, "rljob/sample", &format!("{summary}.reason")), "ChildRejected");
    let message = field(&namespace, "rljob/sample", &format!("{summary}.message"));
    assert!(message.starts_with("the API server refused StatefulSet sample-inference: ") && message.contains("exceeded quota"), "{message}");
    namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
    // Any change of the object is a reason to try again at once.
    namespace.kubectl.run(&["annotate", "rljob/sample", "example.com/quota=removed"]).unwrap();
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Stalled=False");
    drop(operator);
}

#[test]
fn an_object_of_somebody_else_is_left_alone() {
    let namespace = Namespace::create(cluster(), "foreign").unwrap();
    namespace.kubectl.run(&["create", "service", "clusterip", "sample-trainer", "--tcp=80", "--clusterip=None"]).unwrap();
    let version = field(&namespace, "service/sample-trainer", ".metadata.resourceVersion");
    let _operator = Operator::start(&namespace, "rljob:a");
    namespace.kubectl.apply(&job().to_string()).unwrap();
    wait_for_condition(&namespace, "Stalled");
    let message = "these objects have names that the job needs and belong to somebody else; rename the job or remove them: Service sample-trainer";
    assert_eq!(field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message"), message);
    assert_eq!(field(&namespace, "service/sample-trainer", ".metadata.resourceVersion"), version);
    assert_eq!(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]).unwrap(), "");
}

#[test]
fn a_spec_that_only_the_operator_can_see_through_is_stalled_with_every_problem() {
    let volume = |name: &str, path: &str| json!({"name": name, "mountPath": path, "configMap": {"name": "data"}});
    let namespace =
        namespace_with("invalid", &json!({"spec": {"volumes": [volume("data", "/tmp/data"), volume("data", "/more")], "training": {"minibatches": 5}}}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_condition(&namespace, "Stalled");
    let message = field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    for path in ["spec.volumes[0].mountPath: ", "spec.volumes[1].name: ", "spec.rollout.batchSize: "] {
        assert!(message.contains(path), "{path:?} is not in: {message}");
    }
    assert_eq!(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]).unwrap(), "");
}

#[test]
fn the_operator_may_do_no_more_than_it_needs() {
    let user = "--as=system:serviceaccount:rljob-system:rljob-operator";
    let may = |verb: &str, resource: &str| {
        let mut kubectl = Command::new(kubernetes("kubectl").unwrap());
        kubectl.arg("--kubeconfig").arg(cluster().kubeconfig()).args(["auth", "can-i", verb, resource, "--namespace=default", user]);
        // It exits with 1 where the answer is no.
        String::from_utf8_lossy(&kubectl.output().unwrap().stdout).trim() == "yes"
    };
    let rights = [
        ("create", "statefulsets.apps", true),
        ("create", "secrets", true),
        ("get", "secrets", false),
        ("list", "secrets", false),
        ("delete", "pods", true),
        ("deletecollection", "pods", false),
        ("patch", "pods", false),
        ("update", "pods/status", false),
        ("delete", "statefulsets.apps", true),
        ("delete", "secrets", true),
        ("delete", "persistentvolumeclaims", false),
        ("deletecollection", "statefulsets.apps", false),
        ("delete", "rljobs.rljob.dev", false),
        ("create", "rljobs.rljob.dev", false),
        ("update", "rljobs.rljob.dev", false),
        ("get", "nodes", false),
    ];
    let seen = rights.map(|(verb, resource, _)| (verb, resource, may(verb, resource)));
    assert_eq!(seen, rights);
}
