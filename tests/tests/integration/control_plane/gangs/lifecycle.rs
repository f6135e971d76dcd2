//! PodGroups of all schedulers from start to suspension. Pods of the schedulers that do not run
//! here are bound by the test.

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::{LIMIT, patch};
use super::super::pods::bind_to;
use super::{SIZE, add_node, pod_group, start, suspend, wait_for_least, wait_until_placed};

fn pod(namespace: &Namespace, name: &str) -> Value {
    let pod = || namespace.kubectl.get(&[&format!("pod/{name}")]);
    wait_until(&format!("pod {name}"), LIMIT, || Ok(pod().is_ok())).unwrap();
    pod().unwrap()
}

/// Runs a job and returns the spec of its first PodGroup, a member and the coordinator.
fn run(name: &str, gang: &Value, group: &str) -> [Value; 3] {
    let slot = format!("example.com/{name}");
    let namespace = start(name, &slot, gang);
    let spec = wait_for_least(&namespace, group, SIZE)["spec"].take();
    let names = ["inference-0", "inference-1", "trainer-0", "trainer-1"];
    let names = names.map(|name| format!("sample-{name}"));
    let member = names.iter().map(|name| pod(&namespace, name)).next_back().unwrap();
    let coordinator = pod(&namespace, "sample-coordinator-0");
    add_node(name, &slot, SIZE);
    if group == "scheduling.k8s.io" {
        wait_until_placed(&namespace, SIZE);
    } else {
        for pod in &names {
            bind_to(&namespace, pod, name);
        }
    }
    let started = wait_for_least(&namespace, group, 1);
    assert_eq!(started["spec"].get("minResources"), None, "{started:#}");
    suspend(&namespace);
    let is_gone = || Ok(pod_group(&namespace, group).is_none());
    wait_until("the PodGroup to be deleted", LIMIT, is_gone).unwrap();
    patch(&namespace, &json!({"suspend": false}));
    wait_until("the next PodGroup", LIMIT, || Ok(pod_group(&namespace, group).is_some())).unwrap();
    [spec, member, coordinator]
}

#[test]
fn each_scheduler_gets_its_pod_group() {
    let resources = |name: &str| {
        let slot = format!("example.com/{name}");
        json!({"cpu": "1", "memory": "4294967296", slot: "4"})
    };

    let [spec, member, coordinator] = run("native", &json!({"native": {}}), "scheduling.k8s.io");
    assert_eq!(spec["schedulingPolicy"], json!({"gang": {"minCount": 4}}));
    assert_eq!(member["spec"]["schedulingGroup"], json!({"podGroupName": "sample-gang"}));
    assert_eq!(coordinator["spec"].get("schedulingGroup"), None);

    let gang = json!({"coscheduling": {"timeoutSeconds": 60}});
    let [spec, member, coordinator] = run("coscheduling", &gang, "scheduling.x-k8s.io");
    assert_eq!(
        spec,
        json!({
            "minMember": 4, "minResources": resources("coscheduling"),
            "scheduleTimeoutSeconds": 60,
        })
    );
    let label = |pod: &Value| pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"].clone();
    assert_eq!((label(&member), label(&coordinator)), (json!("sample-gang"), Value::Null));
    let scheduler = |pod: &Value| pod["spec"]["schedulerName"].clone();
    let schedulers = (scheduler(&member), scheduler(&coordinator));
    assert_eq!(schedulers, (json!("scheduler-plugins-scheduler"), json!("default-scheduler")));

    let topology = json!({"mode": "Hard", "highestTierAllowed": 2});
    let gang = json!({"volcano": {"queue": "research", "networkTopology": topology}});
    let [spec, member, coordinator] = run("volcano", &gang, "scheduling.volcano.sh");
    assert_eq!(
        spec,
        json!({
            "minMember": 4, "minResources": resources("volcano"), "queue": "research",
            "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
        })
    );
    let annotation =
        |pod: &Value| pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"].clone();
    assert_eq!(
        (annotation(&member), annotation(&coordinator)),
        (json!("sample-gang"), Value::Null)
    );
    assert_eq!(scheduler(&member), "volcano");
}
