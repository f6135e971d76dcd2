//! Causes that keep pods from running, each on real nodes: the status names the pod and the cause,
//! and `Stalled` tells whether the user must act.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::{NODES, Run, cluster, full_reference, operator_image};
use crate::control_plane::merge;

/// Time limit of a cause. The cases run beside other jobs: on two loaded cores, containers need
/// minutes to start.
const LIMIT: Duration = Duration::from_secs(600);
/// Cases that run at once. Each has a job whose other pods run.
const CONCURRENT: usize = 3;

/// A change that keeps a pod of the job from running.
struct Case {
    name: &'static str,
    /// Objects of the namespace.
    objects: Vec<Value>,
    /// Merge patch of the spec.
    spec: Value,
    /// Parts of the message.
    message: &'static [&'static str],
    needs_user: bool,
}

fn trainer_template(spec: Value) -> Value {
    let mut patch = json!({"trainer": {"template": {}}});
    patch["trainer"]["template"]["spec"] = spec;
    patch
}

fn image_cases() -> Vec<Case> {
    let image = |image: &str| json!({"trainer": {"image": image}});
    vec![
        Case {
            name: "pull-fails",
            objects: vec![],
            spec: image("registry.invalid/none:1"),
            message: &["trainer-0", "registry.invalid/none:1"],
            needs_user: false,
        },
        Case {
            name: "invalid-image",
            objects: vec![],
            spec: image("Not A Name"),
            message: &["trainer-0", "InvalidImageName"],
            needs_user: true,
        },
    ]
}

fn admission_cases() -> Vec<Case> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    });
    // Applies to the case's namespace only.
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "NAMESPACE"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"],
            }]},
            "validations": [{"expression": "false", "message": "no pods today"}],
        },
    });
    let names = json!({"matchLabels": {"kubernetes.io/metadata.name": "NAMESPACE"}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "NAMESPACE"},
        "spec": {
            "policyName": "NAMESPACE", "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": names},
        },
    });
    vec![
        Case {
            name: "policy",
            objects: vec![policy, binding],
            spec: json!({}),
            message: &["FailedCreate", "no pods today"],
            needs_user: true,
        },
        Case {
            name: "quota",
            objects: vec![quota],
            spec: json!({}),
            message: &["FailedCreate", "exceeded quota: none"],
            needs_user: true,
        },
        Case {
            name: "restricted",
            objects: vec![],
            spec: json!({"inference": {"template": {"spec": {"hostNetwork": true}}}}),
            message: &["FailedCreate", "violates PodSecurity"],
            needs_user: true,
        },
    ]
}

fn reference_cases() -> Vec<Case> {
    let secret =
        json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}});
    let volume = |source: Value| {
        let data = json!({"name": "data", "mountPath": "/data", "hostPath": {"path": "SHARED"}});
        let mut volume = json!({"name": "more", "mountPath": "/more"});
        merge(&mut volume, &source);
        json!({ "volumes": [data, volume] })
    };
    vec![
        Case {
            name: "no-secret",
            objects: vec![],
            spec: trainer_template(json!({"containers": [{"name": "trainer", "env": [secret]}]})),
            message: &["CreateContainerConfigError", "secret \"no\" not found"],
            needs_user: true,
        },
        Case {
            name: "no-config-map",
            objects: vec![],
            spec: volume(json!({"configMap": {"name": "no"}})),
            message: &["FailedMount", "configmap \"no\" not found"],
            needs_user: true,
        },
        Case {
            name: "no-claim",
            objects: vec![],
            spec: volume(json!({"persistentVolumeClaim": {"claimName": "no"}})),
            message: &["cannot be scheduled", "persistentvolumeclaim \"no\" not found"],
            needs_user: true,
        },
        Case {
            name: "no-driver",
            objects: volume_without_driver(),
            spec: volume(json!({"persistentVolumeClaim": {"claimName": "remote"}})),
            message: &["FailedMount", "none.example.com not found"],
            needs_user: true,
        },
    ]
}

/// A claim that is bound to a volume whose driver runs on no node.
fn volume_without_driver() -> Vec<Value> {
    let size = json!({"storage": "1Gi"});
    let access = json!(["ReadWriteMany"]);
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "none.example.com"}, "spec": {"attachRequired": false},
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "NAMESPACE"},
        "spec": {
            "capacity": size, "accessModes": access, "storageClassName": "",
            "csi": {"driver": "none.example.com", "volumeHandle": "a"},
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "remote"},
        "spec": {
            "resources": {"requests": size}, "accessModes": access, "storageClassName": "",
            "volumeName": "NAMESPACE",
        },
    });
    vec![driver, volume, claim]
}

fn other_cases() -> Vec<Case> {
    let failing = |name: &str| {
        json!({
            "name": name, "image": full_reference(&operator_image()), "imagePullPolicy": "Never",
            "command": ["/usr/local/bin/rljob-engine", "--no-such-flag"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        })
    };
    vec![
        Case {
            name: "no-node",
            objects: vec![],
            spec: trainer_template(json!({"nodeSelector": {"example.com/gpu": "none"}})),
            message: &["trainer-0 cannot be scheduled", "node affinity/selector"],
            needs_user: false,
        },
        Case {
            name: "init-fails",
            objects: vec![],
            spec: trainer_template(json!({"initContainers": [failing("prepare")]})),
            message: &["container prepare of", "CrashLoopBackOff", "exited with code 2"],
            needs_user: false,
        },
        Case {
            name: "crash-loop",
            objects: vec![],
            spec: trainer_template(json!({"containers": [failing("watch")]})),
            message: &["container watch of", "CrashLoopBackOff", "code 2", "--no-such-flag"],
            needs_user: false,
        },
    ]
}

/// The message of `Ready`, and whether `Stalled` is True.
fn state(run: &Run<'_>) -> (String, bool) {
    let conditions = run.status()["conditions"].take();
    let find = |type_: &str| {
        let mut conditions = conditions.as_array().into_iter().flatten();
        conditions.find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
    };
    let message = find("Ready")["message"].as_str().unwrap_or_default().to_owned();
    (message, find("Stalled")["status"] == "True")
}

fn pods_are_denied(namespace: &Namespace) -> bool {
    let probe = ["run", "probe", "--image=none", "--dry-run=server"];
    namespace.kubectl.run(&probe).is_err_and(|error| format!("{error:#}").contains("denied"))
}

fn is_reported(case: &Case) {
    let namespace = Namespace::create(cluster(), case.name).unwrap();
    if case.name == "restricted" {
        let label = "pod-security.kubernetes.io/enforce=restricted";
        namespace.kubectl.run(&["label", &format!("namespace/{}", namespace.name), label]).unwrap();
    }
    for object in &case.objects {
        let object = object.to_string().replace("NAMESPACE", &namespace.name);
        namespace.kubectl.apply(&object).unwrap();
    }
    if case.name == "policy" {
        wait_until("the policy to be in force", LIMIT, || Ok(pods_are_denied(&namespace))).unwrap();
    }
    let mut job: Value = serde_yaml::from_str(include_str!("waiting.yaml")).unwrap();
    merge(&mut job["spec"], &case.spec);
    let run = Run::start(cluster(), &namespace, &job.to_string(), "waits");
    let is_shown = || {
        let (message, is_stalled) = state(&run);
        let shown = case.message.iter().all(|part| message.contains(part));
        Ok(shown && is_stalled == case.needs_user)
    };
    wait_until(&format!("the cause of {}", case.name), LIMIT, is_shown).unwrap_or_else(|error| {
        let events = namespace.kubectl.run(&["get", "events"]).unwrap_or_default();
        panic!("{}: {error:#}\n{events}\n{:#}", case.name, run.status())
    });
    namespace.kubectl.run(&["delete", "rljob/waits", "--wait"]).unwrap();
    eprintln!("waits: {} after {:.0} s", case.name, run.start.elapsed().as_secs_f64());
}

#[test]
fn what_keeps_pods_from_running_is_in_the_status() {
    let _nodes = NODES.read();
    let cases = [image_cases(), admission_cases(), reference_cases(), other_cases()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    is_reported(case);
                }
            });
        }
    });
}

/// The namespace's folder of runs belongs to root, as on a volume that was not prepared for the
/// user of the pods.
#[test]
fn a_run_directory_of_another_owner_delays_the_start_until_it_is_writable() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "owner").unwrap();
    let directory = cluster().shared_folder("runs").unwrap().join(&namespace.name).join("waits");
    fs::create_dir_all(&directory).unwrap();
    let mode = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    let steps = include_str!("waiting.yaml").replace("steps: 100000", "steps: 2");
    let run = Run::start(cluster(), &namespace, &steps, "waits");
    let is_shown = || {
        let (message, is_stalled) = state(&run);
        let parts = ["the coordinator cannot write", "Permission denied", "give user 65532"];
        Ok(!is_stalled && parts.iter().all(|part| message.contains(part)))
    };
    wait_until("the fault of the volume", LIMIT, is_shown)
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}", run.status()));
    mode(0o777);
    run.wait_for_condition("Succeeded");
    assert_eq!(run.status()["restarts"], 0);
}
