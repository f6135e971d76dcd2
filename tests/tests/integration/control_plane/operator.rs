//! The operator's binary against a real API server and real controllers, with the rights of install.yaml's service account and nothing else. There is no node,
//! so that pods are made and removed but never run: what a run does is the end-to-end test's.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rljob_tests::enclosure::Program;
use rljob_tests::files::{binary, kubernetes, workspace};
use rljob_tests::process::{run, wait_until};
use rljob_tests::{Kubectl, Namespace};
use serde_json::{Value, json};

use super::{cluster, job, merge};

/// What the API server and its controllers may take on a machine that does other things too; the garbage collector learns of a new kind within half a minute.
const LIMIT: Duration = Duration::from_secs(90);
/// Everything that a job is made of.
const KINDS: &str = "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
/// Selects it.
const OWN: &str = "--selector=rljob.dev/job=sample";

/// An operator for one namespace. A failing test prints what it said.
struct Operator(Program);

impl Operator {
    fn start(namespace: &Namespace, image: &str) -> Self {
        let name = format!("operator-{}-{}", namespace.name, image.replace([':', '/'], "-"));
        let arguments = [
            format!("KUBECONFIG={}", service_account_config(&namespace.name)),
            binary("rljob-operator").unwrap().display().to_string(),
            format!("--image={image}"),
            format!("--namespace={}", namespace.name),
            "--listen=127.0.0.1:0".to_owned(),
        ];
        Self(cluster().start_program(&name, "env".as_ref(), &arguments).unwrap())
    }

    fn wait_to_say(&self, words: &str) {
        wait_until(&format!("the operator to say {words:?}"), LIMIT, || Ok(self.0.words().contains(words))).unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("── the operator said\n{}", self.0.words());
        }
    }
}

/// A kubeconfig with a token of the service account that install.yaml makes.
fn service_account_config(name: &str) -> String {
    let token = system().run(&["create", "token", "rljob-operator", "--duration=1h"]).unwrap();
    let admin = cluster().kubeconfig();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(admin).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    config["contexts"][0]["context"]["namespace"] = json!("rljob-system");
    let path = admin.with_file_name(format!("operator-{name}.kubeconfig"));
    fs::write(&path, config.to_string()).unwrap();
    path.display().to_string()
}

fn system() -> Kubectl {
    cluster().kubectl().in_namespace("rljob-system")
}

/// A namespace with the job `sample`, changed by a merge patch.
fn namespace_with(prefix: &str, patch: &Value) -> Namespace {
    let namespace = Namespace::create(cluster(), prefix).unwrap();
    let mut job = job();
    merge(&mut job, patch);
    namespace.kubectl.apply(&job.to_string()).unwrap();
    namespace
}

fn status(namespace: &Namespace) -> anyhow::Result<Value> {
    Ok(namespace.kubectl.get(&["rljob/sample"])?["status"].take())
}

fn wait_for_condition(namespace: &Namespace, condition: &str) {
    let arguments = ["wait", &format!("--for=condition={condition}"), "rljob/sample", &format!("--timeout={}s", LIMIT.as_secs())];
    namespace.kubectl.run(&arguments).unwrap();
}

/// Waits until the job has this many pods.
fn wait_for_pods(namespace: &Namespace, count: usize) {
    let pods = || namespace.kubectl.run(&["get", "pods", OWN, "--output=name"]);
    wait_until(&format!("{count} pods"), LIMIT, || Ok(pods()?.lines().count() == count)).unwrap();
}

/// A field of an object, by JSONPath.
fn field(namespace: &Namespace, object: &str, path: &str) -> String {
    namespace.kubectl.run(&["get", object, &format!("--output=jsonpath={{{path}}}")]).unwrap()
}

fn patch(namespace: &Namespace, spec: &Value) {
    namespace.kubectl.run(&["patch", "rljob/sample", "--type=merge", "--patch", &json!({"spec": spec}).to_string()]).unwrap();
}

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
    assert!(!operator.0.words().contains("forbidden"), "the service account lacks a right:\n{}", operator.0.words());
}

fn keys(object: &Value) -> Vec<&String> {
    object.as_object().into_iter().flat_map(|fields| fields.keys()).collect()
}

#[test]
fn a_new_job_says_in_columns_and_events_what_it_waits_for() {
    let namespace = namespace_with("words", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_condition(&namespace, "Reconciling");
    let table = namespace.kubectl.run(&["get", "rljobs"]).unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["sample", "Starting", "3", "0"], "{table}");
    let waits_for = "waiting for 1 of 1 coordinator pods, 1 of 1 trainer pods, 1 of 1 inference pods";
    let events = || namespace.kubectl.run(&["get", "events", "--field-selector=involvedObject.name=sample", "--output=jsonpath={.items[*]['reason','message']}"]);
    wait_until("the event", LIMIT, || Ok(events()? == format!("Starting {waits_for}"))).unwrap();
    assert_eq!(field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].message"), waits_for);
}

#[test]
fn another_operator_changes_neither_pods_nor_status_until_the_job_is_resumed() {
    let namespace = namespace_with("pinned", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let image = |object: &str, path: &str| field(&namespace, object, &format!("{path}.containers[0].image"));
    let first = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    wait_until("the epoch of the coordinator pod", LIMIT, || Ok(status(&namespace)?["epoch"] == 1)).unwrap();
    drop(first);
    let uid = field(&namespace, "pod/sample-trainer-0", ".metadata.uid");
    let version = field(&namespace, "rljob/sample", ".metadata.resourceVersion");

    let second = Operator::start(&namespace, "rljob:b");
    second.wait_to_say("\"reconciled\"");
    assert_eq!(field(&namespace, "rljob/sample", ".metadata.resourceVersion"), version, "nothing had changed, and yet the status was written");
    patch(&namespace, &json!({"inference": {"replicas": 2}}));
    wait_for_pods(&namespace, 4);
    assert_eq!(field(&namespace, "pod/sample-trainer-0", ".metadata.uid"), uid);
    assert_eq!(image("pod/sample-inference-1", ".spec"), "rljob:a", "a pod of a running job is made like its peers");

    patch(&namespace, &json!({"suspend": true}));
    wait_for_condition(&namespace, "Suspended");
    patch(&namespace, &json!({"suspend": false}));
    wait_for_pods(&namespace, 4);
    assert_eq!(image("pod/sample-trainer-0", ".spec"), "rljob:b", "a resume renders anew");
}

#[test]
fn a_suspended_job_has_no_pods_and_a_resumed_one_has_them_again() {
    let namespace = namespace_with("suspend", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    patch(&namespace, &json!({"suspend": true}));
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
    assert_eq!(field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].reason"), "Suspended");
    assert_eq!(field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Ready')].status"), "True");
    patch(&namespace, &json!({"suspend": false}));
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Suspended=False");
}

/// The API server refuses the record, so that the deed must not follow.
#[test]
fn no_pod_is_removed_before_the_status_says_so() {
    let namespace = namespace_with("record", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    let name = format!("{}-refuse-releasing", namespace.name);
    let policy = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["rljob.dev"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["rljobs/status"]}]},
            "validations": [{"expression": "!object.status.conditions.exists(c, c.reason == 'Releasing')", "message": "this record is refused"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}}}},
    ]});
    namespace.kubectl.apply(&policy.to_string()).unwrap();
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    wait_until("the policy to be in force", LIMIT, || {
        let record = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Releasing", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let answer = namespace.kubectl.run(&["patch", "rljob/sample", "--subresource=status", "--type=merge", "--dry-run=server", "--patch", &record.to_string()]);
        Ok(answer.is_err_and(|error| format!("{error:#}").contains("this record is refused")))
    })
    .unwrap();

    patch(&namespace, &json!({"suspend": true}));
    operator.wait_to_say("this record is refused");
    wait_for_pods(&namespace, 3);
    assert_eq!(field(&namespace, "statefulset/sample-trainer", ".spec.replicas"), "1");
    namespace.kubectl.run(&["delete", "validatingadmissionpolicybindings,validatingadmissionpolicies", &name]).unwrap();
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
}

#[test]
fn every_new_coordinator_pod_has_a_higher_epoch() {
    let namespace = namespace_with("epoch", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    for epoch in 1..=2 {
        wait_until(&format!("epoch {epoch}"), LIMIT, || Ok(status(&namespace)?["epoch"] == epoch)).unwrap();
        let seen = status(&namespace).unwrap();
        assert_eq!(seen["coordinatorUid"], field(&namespace, "pod/sample-coordinator-0", ".metadata.uid"), "{seen}");
        namespace.kubectl.run(&["delete", "pod/sample-coordinator-0", "--grace-period=0", "--force"]).unwrap();
    }
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
    let namespace = namespace_with("invalid", &json!({"spec": {"volumes": [volume("data", "/tmp/data"), volume("data", "/more")], "training": {"minibatches": 5}}}));
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
        ("delete", "pods", false),
        ("delete", "statefulsets.apps", false),
        ("create", "rljobs.rljob.dev", false),
        ("update", "rljobs.rljob.dev", false),
        ("get", "nodes", false),
    ];
    let seen = rights.map(|(verb, resource, _)| (verb, resource, may(verb, resource)));
    assert_eq!(seen, rights);
}

/// Puts the service account and its rights into the cluster; the Deployment finds no node.
pub(super) fn install(kubectl: &Kubectl) -> anyhow::Result<()> {
    kubectl.run(&["apply", "--filename", &workspace().join("manifests/install.yaml").display().to_string()]).map(drop)
}
