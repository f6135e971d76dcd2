//! Pod templates of all roles on real nodes: each kind of content takes effect in the pod and,
//! where visible, in its processes.

use std::fs;

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster, full_reference, operator_image};

/// Main container and program of each role.
const ROLES: [(&str, &str, &str); 3] = [
    ("coordinator", "coordinator", "rljob-coordinator --config"),
    ("trainer", "trainer", "rljob-supervisor --config"),
    ("inference", "engine", "rljob-engine --model-path=/data/model "),
];

/// Objects that the templates refer to.
fn objects() -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "template-high"}, "value": 1000,
        },
        {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "template-runc"}, "handler": "runc",
        },
        {
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "template-workload"},
        },
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "template-pull"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": "{\"auths\":{}}"},
        },
    ]})
    .to_string()
}

/// Advertises an extended resource without a device plugin, in place of RDMA hardware.
fn advertise_devices() {
    let capacity = json!([{"op": "add", "path": "/status/capacity/rdma~1hca", "value": "4"}]);
    for node in ["node-1", "node-2"] {
        let path = format!("/api/v1/nodes/{node}/status");
        cluster().api().unwrap().edit(&path, &capacity).unwrap();
    }
}

/// Whether `part` is in `whole`: objects by field, lists item by item in any order. Null, an absent
/// part, is contained in everything.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (_, Value::Null) => true,
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|part| whole.iter().any(|whole| contains(whole, part)))
        }
        _ => whole == part,
    }
}

#[test]
fn each_kind_of_template_content_reaches_the_pods() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "template").unwrap();
    namespace.kubectl.apply(&objects()).unwrap();
    advertise_devices();
    let text = include_str!("template.yaml").replace("IMAGE", &full_reference(&operator_image()));
    let run = Run::start(cluster(), &namespace, &text, "template");
    run.wait_for_steps(1);
    let job: Value = namespace.kubectl.get(&["rljob/template"]).unwrap();
    for (role, container, program) in ROLES {
        let name = format!("pod/template-{role}-0");
        let pod = namespace.kubectl.get(&[&name]).unwrap();
        let template = &job["spec"][role]["template"];
        assert!(
            contains(&pod["metadata"], &template["metadata"]),
            "{role}: {} lacks {}",
            pod["metadata"],
            template["metadata"]
        );
        for (field, part) in template["spec"].as_object().unwrap() {
            let whole = &pod["spec"][field];
            assert!(contains(whole, part), "{role}: {field} = {whole} lacks {part}");
        }
        assert_eq!(pod["spec"]["priority"], 1000, "{role}");
        process_sees_the_template(container, program);
    }
    let trainer = namespace.kubectl.get(&["pod/template-trainer-0"]).unwrap();
    let limits = &trainer["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["rdma/hca"], "1", "{limits}");
    let pod = namespace.kubectl.get(&["pod/template-inference-0"]).unwrap();
    assert_eq!(pod["status"]["podIP"], pod["status"]["hostIP"], "the engine uses the host network");
    rejected_content_is_named_with_its_path(&run);
}

/// Environment, groups and mounts of a main container's process.
fn process_sees_the_template(container: &str, program: &str) {
    let processes = cluster().pod_processes("");
    let read = |file: &str| {
        let process = processes.iter().rfind(|process| {
            process.command_line.contains(program)
                && fs::read(format!("/proc/{}/environ", process.pid.as_raw_nonzero()))
                    .is_ok_and(|text| String::from_utf8_lossy(&text).contains("TEMPLATE_NOTE=kept"))
        });
        let process =
            process.unwrap_or_else(|| panic!("no process of {container} has TEMPLATE_NOTE"));
        fs::read_to_string(format!("/proc/{}/{file}", process.pid.as_raw_nonzero())).unwrap()
    };
    let status = read("status");
    let groups = status.lines().find(|line| line.starts_with("Groups:")).unwrap();
    assert!(groups.split_whitespace().any(|group| group == "4321"), "{container}: {groups}");
    let mounts = read("mountinfo");
    let mount = |path: &str| {
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(path));
        line.unwrap_or_else(|| panic!("{container}: {path} is not mounted in {mounts}")).to_owned()
    };
    mount("/scratch");
    assert!(mount("/dev/shm").contains("size=49152k"), "{container}: {}", mount("/dev/shm"));
}

/// Content that only the API server can validate stalls the job with the path inside the template.
fn rejected_content_is_named_with_its_path(run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    let patch = |spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        kubectl.run(&["patch", "rljob/template", "--type=merge", "--patch", &patch]).unwrap();
    };
    patch(json!({"suspend": true}));
    run.wait_for_condition("Suspended");
    let invalid = json!({"template": {"spec": {"nodeSelector": {"not a label": "x"}}}});
    patch(json!({"suspend": false, "coordinator": invalid}));
    let message = || {
        let conditions = run.status()["conditions"].take();
        let stalled = conditions.as_array().and_then(|conditions| {
            conditions.iter().find(|c| c["type"] == "Stalled" && c["status"] == "True").cloned()
        });
        stalled.map(|condition| condition["message"].as_str().unwrap_or_default().to_owned())
    };
    wait_until("the rejection in the status", LIMIT, || Ok(message().is_some())).unwrap();
    let message = message().unwrap();
    assert!(message.contains("nodeSelector"), "{message}");
    kubectl.run(&["delete", "rljob/template", "--wait"]).unwrap();
}
