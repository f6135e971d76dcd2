//! The scale subresource, used by `kubectl scale` and the HorizontalPodAutoscaler, and the objects
//! of engines that exist while there are some.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::operator::{LIMIT, Operator, field, namespace_with, wait_for_pods};

#[test]
fn kubectl_scale_and_autoscalers_set_the_number_of_engines() {
    let namespace = namespace_with("scale", &json!({}));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    namespace.kubectl.run(&["scale", "rljob/sample", "--replicas=3", "--timeout=60s"]).unwrap();
    wait_for_pods(&namespace, 5);
    let path =
        format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample/scale", namespace.name);
    let scale = || -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&namespace.kubectl.run(&["get", "--raw", &path])?)?)
    };
    wait_until("the status to count the pods", LIMIT, || Ok(scale()?["status"]["replicas"] == 3))
        .unwrap();
    let expected =
        json!({"replicas": 3, "selector": "rljob.dev/job=sample,rljob.dev/role=inference"});
    assert_eq!(
        (&scale().unwrap()["spec"], &scale().unwrap()["status"]),
        (&json!({"replicas": 3}), &expected)
    );
    namespace.kubectl.run(&["scale", "rljob/sample", "--replicas=1"]).unwrap();
    wait_for_pods(&namespace, 3);

    // Without metrics, an autoscaler still enforces its limits.
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "engines"}, "spec": {
    "scaleTargetRef": {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sample",
    }, "minReplicas": 2, "maxReplicas": 4,
    "metrics": [{
        "type": "Resource",
        "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80},
        },
    }]}});
    namespace.kubectl.apply(&autoscaler.to_string()).unwrap();
    wait_for_pods(&namespace, 4);
    assert_eq!(
        field(&namespace, "hpa/engines", ".status.conditions[?(@.type=='AbleToScale')].status"),
        "True"
    );
    assert_eq!(field(&namespace, "rljob/sample", ".spec.inference.replicas"), "2");
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

#[test]
fn a_job_has_the_service_and_the_budget_of_its_engines_while_it_wants_engines() {
    let spec = json!({
        "algorithm": {"grpo": null, "sft": {"batchSize": 8}},
        "dataset": {"train": {"completion": "{{completion}}"}},
        "rewards": null,
        "inference": {"replicas": 0},
    });
    let namespace = namespace_with("no-engines", &json!({ "spec": spec }));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 2);
    let objects = || {
        let kinds = "services,poddisruptionbudgets,statefulsets";
        namespace.kubectl.run(&["get", kinds, "--output=name"])
    };
    let [budget, service, set] = ["poddisruptionbudget.policy", "service", "statefulset.apps"]
        .map(|kind| move |role: &str| format!("{kind}/sample-{role}\n"));
    let sets = ["coordinator", "inference", "trainer"].map(set).concat();
    let without = ["coordinator", "trainer"].map(&service).concat() + &sets;
    assert_eq!(objects().unwrap(), without);
    namespace.kubectl.run(&["scale", "rljob/sample", "--replicas=1"]).unwrap();
    wait_for_pods(&namespace, 3);
    let services = ["coordinator", "inference", "trainer"].map(service).concat();
    assert_eq!(objects().unwrap(), services + &budget("inference") + &sets);
    namespace.kubectl.run(&["scale", "rljob/sample", "--replicas=0"]).unwrap();
    wait_for_pods(&namespace, 2);
    wait_until("the deletion of both", LIMIT, || Ok(objects()? == without)).unwrap();
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}
