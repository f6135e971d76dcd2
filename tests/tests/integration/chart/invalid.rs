//! Values that the chart rejects, with their place.

use serde_json::{Value, json};

use super::template;

fn assert_rejected(values: &Value, reason: &str) {
    let answer = template(values);
    let message = format!("{:#}", answer.expect_err(&format!("accepted: {values}")));
    assert!(message.contains(reason), "{values}: not {reason:?}:\n{message}");
}

#[test]
fn invalid_values_are_rejected_with_their_place() {
    let cases = [
        (json!({"replica": 2}), "additional properties 'replica' not allowed"),
        (json!({"jobs": {"namespac": "a"}}), "at '/jobs': additional properties 'namespac'"),
        (json!({"crd": {"enabled": true}}), "at '/crd': additional properties 'enabled'"),
        (json!({"replicas": "two"}), "at '/replicas': got string, want integer"),
        (json!({"replicas": -1}), "at '/replicas': minimum: got -1, want 0"),
        (json!({"jobs": {"namespace": "Team"}}), "at '/jobs/namespace': 'Team' does not match"),
        (json!({"image": {"digest": "latest"}}), "at '/image/digest': 'latest' does not match"),
        (json!({"image": {"repository": ""}}), "at '/image/repository': '' does not match pattern"),
        (
            json!({"image": {"repository": "registry.example:5000/rljob:1.2"}}),
            "at '/image/repository': 'registry.example:5000/rljob:1.2' does not match pattern",
        ),
        (json!({"jobs": {"image": "a b"}}), "at '/jobs/image': 'a b' does not match pattern"),
        (
            json!({"image": {"pullPolicy": "always"}}),
            "at '/image/pullPolicy': value must be one of",
        ),
        (json!({"podLabels": {"a": 1}}), "at '/podLabels/a': got number, want string"),
        (json!({"affinity": {"nodes": {}}}), "at '/affinity': additional properties 'nodes'"),
        (json!({"resources": {"cpu": 1}}), "at '/resources': additional properties 'cpu'"),
        (json!({"podMonitor": {"interval": "30"}}), "at '/podMonitor/interval': '30' does not"),
        (
            json!({"jobs": {"scrapers": {"podSelector": {"app": "prometheus"}}}}),
            "jobs.scrapers.podSelector needs jobs.scrapers.namespaceSelector",
        ),
        (
            json!({"kueue": {"requireQueue": {"managed": "true"}}}),
            "kueue.requireQueue needs kueue.enabled: without it, jobs with a queue start at once",
        ),
        (
            json!({"podMonitor": {"jobs": true}}),
            "podMonitor.jobs needs jobs.scrapers.namespaceSelector: the labels of the namespace of \
                your Prometheus, which the NetworkPolicies of jobs reject otherwise",
        ),
    ];
    for (values, reason) in cases {
        assert_rejected(&values, reason);
    }
}

#[test]
fn invalid_values_of_networks_and_alerts_are_rejected_with_their_place() {
    let cases = [
        (
            json!({"networkPolicy": {"apiServerPorts": [0]}}),
            "at '/networkPolicy/apiServerPorts/0': minimum: got 0, want 1",
        ),
        (
            json!({"networkPolicy": {"apiServerCIDRs": ["10.96.0.1"]}}),
            "at '/networkPolicy/apiServerCIDRs/0': '10.96.0.1' does not match pattern",
        ),
        (
            json!({"jobs": {"egressCIDRs": ["example.com/24"]}}),
            "at '/jobs/egressCIDRs/0': 'example.com/24' does not match pattern",
        ),
        (
            json!({"prometheusRule": {"disabled": ["Watchdog"]}}),
            "at '/prometheusRule/disabled/0': value must be one of",
        ),
        (
            json!({"prometheusRule": {"for": {"Watchdog": "5m"}}}),
            "at '/prometheusRule/for': additional properties 'Watchdog' not allowed",
        ),
        (
            json!({"prometheusRule": {"for": {"RLJobFailed": "5"}}}),
            "at '/prometheusRule/for/RLJobFailed': '5' does not match pattern",
        ),
        (
            json!({"prometheusRule": {"thresholds": {"RLJobFailed": 1}}}),
            "at '/prometheusRule/thresholds': additional properties 'RLJobFailed' not allowed",
        ),
        (
            json!({"prometheusRule": {"thresholds": {"RLJobGpusIdle": 90}}}),
            "at '/prometheusRule/thresholds/RLJobGpusIdle': exclusiveMaximum: got 90, want 1",
        ),
        (
            json!({"prometheusRule": {"runbookBaseURL": "wiki"}}),
            "at '/prometheusRule/runbookBaseURL': 'wiki' does not match pattern",
        ),
    ];
    for (values, reason) in cases {
        assert_rejected(&values, reason);
    }
}
