//! Unit tests of the policies: their rules for specs and settings.

use serde_json::{Value, json};

use super::*;
use crate::validate::test_support::with_spec;

fn policies(spec: &Value) -> Vec<Value> {
    let settings = Settings {
        scrapers: Some(Scrapers {
            namespace: BTreeMap::from([("team".to_owned(), "monitoring".to_owned())]),
            pods: BTreeMap::new(),
        }),
        ..Settings::new("rljob:7")
    };
    policies_with(&settings, spec)
}

fn policies_with(settings: &Settings, spec: &Value) -> Vec<Value> {
    let job = with_spec(spec);
    let policies = build_network_policies(&job, settings);
    let built: Vec<String> =
        policies.iter().filter_map(|policy| policy.metadata.name.clone()).collect();
    assert_eq!(names(&job), built);
    policies.iter().map(|policy| serde_json::to_value(policy).unwrap()["spec"].take()).collect()
}

#[test]
fn pods_accept_each_other_the_operator_and_scrapers_and_reach_each_other_and_dns() {
    let tcp = |port: u16| json!({"port": port, "protocol": "TCP"});
    let own = json!({"podSelector": {"matchLabels": {"rljob.dev/job": "sums"}}});
    let operator = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}},
    });
    let scrapers = json!({"namespaceSelector": {"matchLabels": {"team": "monitoring"}}});
    let expected = json!({
        "podSelector": {
            "matchExpressions": [],
            "matchLabels": {"rljob.dev/job": "sums"},
        },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [own]},
            {"from": [operator], "ports": [tcp(8080)]},
            {"from": [scrapers], "ports": [tcp(8080), tcp(30000)]},
        ],
        "egress": [
            {"to": [own]},
            {"ports": [{"port": 53, "protocol": "UDP"}, tcp(53)]},
        ],
    });
    assert_eq!(policies(&json!({})), [expected]);
}

/// Role, ports and whether the metadata service is excepted, of each policy of a role.
fn ports(spec: &Value) -> Vec<(Value, Vec<u64>, bool)> {
    let roles = policies(spec).into_iter().skip(1);
    let facts = roles.map(|policy| {
        let rule = &policy["egress"][0];
        let ports = rule["ports"].as_array().unwrap().iter();
        let role = policy["podSelector"]["matchLabels"]["rljob.dev/role"].clone();
        let excepts_metadata = rule["to"][0]["ipBlock"]["except"] != json!([]);
        (role, ports.filter_map(|port| port["port"].as_u64()).collect(), excepts_metadata)
    });
    facts.collect()
}

#[test]
fn roles_reach_the_ports_of_servers_that_the_spec_names() {
    let verifier = json!({"name": "v", "http": {"url": "http://judge.lab:8000/score"}});
    let model = json!({"url": "http://scores.lab:30000", "text": "{{completion}}"});
    assert_eq!(
        ports(&json!({"rewards": [verifier, {"name": "m", "model": model}]})),
        [(json!("coordinator"), vec![8000, 30000], true)]
    );
    let teacher = json!({"server": {"url": "http://teacher.lab:30001"}});
    let distillation = json!({"grpo": null, "distillation": {"teacher": teacher}});
    assert_eq!(
        ports(&json!({"algorithm": distillation})),
        [(json!("coordinator"), vec![30001], true)]
    );
    let joint = json!({"grpo": {"distillation": {"teacher": teacher}}});
    assert_eq!(ports(&json!({"algorithm": joint})), [(json!("coordinator"), vec![30001], true)]);
    let environment = json!({"environment": {"url": "http://games.lab:8700/maze"}});
    assert_eq!(
        ports(&json!({"rollout": {"workflow": environment}})),
        [(json!("coordinator"), vec![8700], true)]
    );
    let tool = json!({"name": "add", "description": "Adds.", "http": {
        "url": "https://tools.lab/add"}});
    assert_eq!(
        ports(&json!({"rollout": {"workflow": {"tools": {"tools": [tool]}}}})),
        [(json!("coordinator"), vec![443], true)]
    );
    let tracking = json!({
        "mlflow": {"uri": "https://mlflow.lab"},
        "openTelemetry": {"endpoint": "http://collector.lab:4318"},
    });
    assert_eq!(
        ports(&json!({"tracking": tracking})),
        [(json!("coordinator"), vec![443, 4318], true)]
    );
    let bucket = |more: Value| {
        let mut s3 = json!({"bucket": "runs", "endpoint": "https://s3.example.com:9000"});
        s3.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "storage": {"persistentVolumeClaim": null, "s3": s3},
            "weightSync": {"method": "Distributed"},
        })
    };
    assert_eq!(
        ports(&bucket(json!({"credentialsSecretRef": {"name": "keys"}}))),
        [(json!("coordinator"), vec![9000], true), (json!("trainer"), vec![9000], true)]
    );
    assert_eq!(
        ports(&bucket(json!({}))),
        [
            (json!("coordinator"), vec![80, 443, 9000], false),
            (json!("trainer"), vec![80, 443, 9000], false)
        ],
        "an identity from the metadata service"
    );
}

#[test]
fn blocks_of_the_operators_settings_replace_all_addresses_and_pods() {
    let settings = Settings {
        egress_cidrs: vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()],
        ..Settings::new("rljob:7")
    };
    let verifier = json!({"name": "v", "http": {"url": "http://judge.lab:8000/score"}});
    let [job, coordinator] = &policies_with(&settings, &json!({"rewards": [verifier]}))[..] else {
        panic!("two policies")
    };
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr, "except": []}});
    let outside = json!([{
        "to": [block("10.0.0.0/8"), block("fd00::/8")],
        "ports": [{"port": 8000, "protocol": "TCP"}],
    }]);
    assert_eq!(coordinator["egress"], outside);
    let unrestricted = policies_with(&Settings::new("rljob:7"), &json!({}));
    assert_eq!(job["egress"], unrestricted[0]["egress"], "pods of the job, and DNS");
}
