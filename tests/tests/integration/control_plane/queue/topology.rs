//! Topology-aware scheduling of Kueue: it assigns nodes to pods that wait behind a gate.

use serde_json::{Value, json};

use super::super::operator::wait_for_pods;
use super::start;

#[test]
fn pods_with_a_topology_wait_for_their_nodes() {
    let annotations = json!({"kueue.x-k8s.io/podset-required-topology": "rack"});
    let template = json!({"metadata": {"annotations": annotations}});
    let trainer = json!({"spec": {"trainer": {"replicas": 2, "template": template}}});
    let (fixture, kueue) = start("topology", &trainer);
    let sets = kueue.workload().unwrap()["spec"]["podSets"].take();
    let requests: Vec<&Value> =
        sets.as_array().unwrap().iter().map(|set| &set["topologyRequest"]).collect();
    let request = json!({"required": "rack", "podIndexLabel": "apps.kubernetes.io/pod-index"});
    assert_eq!(requests, [&Value::Null, &Value::Null, &request]);

    kueue.admit_with("spot", |assignment| {
        if assignment["name"] == "trainer" {
            assignment["topologyAssignment"] = json!({"levels": ["rack"], "slices": []});
        }
    });
    wait_for_pods(&fixture.namespace, 4);
    let pod = |role: &str| {
        let pod = fixture.path("api/v1", &format!("pods/sample-{role}-0"));
        fixture.api.get(&pod).unwrap()
    };
    let (trainer, engine) = (pod("trainer"), pod("inference"));
    let gates = json!([{"name": "kueue.x-k8s.io/topology"}]);
    assert_eq!(trainer["spec"]["schedulingGates"], gates);
    let annotation = &trainer["metadata"]["annotations"]["kueue.x-k8s.io/workload"];
    assert_eq!(*annotation, kueue.name());
    assert_eq!(engine["spec"].get("schedulingGates"), None);
}
