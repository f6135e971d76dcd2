//! Effects of the chart's values on its objects.

use rljob_tests::Helm;
use serde_json::{Value, json};

use super::{NAMESPACE, identity, render};

const DEPLOYMENT: &str = "Deployment rljob-system/rljob-operator";
const POD: &str = "/spec/template/spec";
const CONTAINER: &str = "/spec/template/spec/containers/0";

/// A part of an object that the chart renders with these values; null if it does not exist.
pub(super) fn part(values: &Value, object: &str, pointer: &str) -> Value {
    let objects = render(values);
    let found = objects.iter().find(|candidate| identity(candidate) == object);
    let found = found.unwrap_or_else(|| panic!("{values} renders no {object}"));
    found.pointer(pointer).cloned().unwrap_or_default()
}

/// The arguments of the operator after those that every release has.
pub(super) fn more_arguments(values: &Value) -> Value {
    let Value::Array(command) = part(values, DEPLOYMENT, &format!("{CONTAINER}/command")) else {
        panic!("the container has no command");
    };
    let first =
        ["/usr/local/bin/rljob-operator", "--image=", "--listen=[::]:8082", "--leader-elect"];
    for (argument, start) in command.iter().zip(first) {
        assert!(argument.as_str().unwrap().starts_with(start), "{argument}");
    }
    command[first.len()..].into()
}

#[test]
fn values_of_jobs_are_arguments_of_the_operator() {
    let cases = [
        (json!({}), json!([])),
        (json!({"namespace": "team-a"}), json!(["--namespace=team-a"])),
        (json!({"allowHostPath": true}), json!(["--allow-host-path"])),
        (
            json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
            json!(["--image-pull-secrets=a,b"]),
        ),
        (json!({"metrics": false}), json!(["--job-metrics=false"])),
        (
            json!({"egressCIDRs": ["10.0.0.0/8", "fd00::/8"]}),
            json!(["--egress-cidrs=10.0.0.0/8,fd00::/8"]),
        ),
        (
            json!({"scrapers": {
                "namespaceSelector": {"kubernetes.io/metadata.name": "monitoring", "a": "b"},
                "podSelector": {"app": "prometheus"},
            }}),
            json!([
                "--metrics-namespace-selector=a=b,kubernetes.io/metadata.name=monitoring",
                "--metrics-pod-selector=app=prometheus",
            ]),
        ),
    ];
    for (jobs, expected) in cases {
        assert_eq!(more_arguments(&json!({"jobs": jobs})), expected, "{jobs}");
    }
}

#[test]
fn the_image_has_a_digest_or_a_tag_and_jobs_may_have_another() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let cases = [
        (json!({}), "rljob:0.1.0", "rljob:0.1.0"),
        (
            json!({"image": {"repository": "registry.example/rljob", "tag": "1"}}),
            "registry.example/rljob:1",
            "registry.example/rljob:1",
        ),
        (
            json!({"image": {"digest": digest, "tag": "1"}, "jobs": {"image": "rljob-cuda:1"}}),
            &format!("rljob@{digest}"),
            "rljob-cuda:1",
        ),
    ];
    for (values, operator, jobs) in cases {
        assert_eq!(part(&values, DEPLOYMENT, &format!("{CONTAINER}/image")), operator);
        let argument = part(&values, DEPLOYMENT, &format!("{CONTAINER}/command/1"));
        assert_eq!(argument, format!("--image={jobs}"));
    }
}

#[test]
fn values_of_pods_are_in_the_deployment() {
    let labels = json!({"team": "a", "app.kubernetes.io/name": "other"});
    let cases = [
        ("replicas", json!(3), "/spec/replicas".to_owned()),
        ("imagePullSecrets", json!([{"name": "keys"}]), format!("{POD}/imagePullSecrets")),
        (
            "resources",
            json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}),
            format!("{CONTAINER}/resources"),
        ),
        ("priorityClassName", json!("high"), format!("{POD}/priorityClassName")),
        ("nodeSelector", json!({"pool": "system"}), format!("{POD}/nodeSelector")),
        ("tolerations", json!([{"operator": "Exists"}]), format!("{POD}/tolerations")),
        (
            "topologySpreadConstraints",
            json!([{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"a": "b"}},
            }]),
            format!("{POD}/topologySpreadConstraints"),
        ),
        ("podAnnotations", json!({"a": "b"}), "/spec/template/metadata/annotations".to_owned()),
        ("env", json!([{"name": "RUST_LOG", "value": "debug"}]), format!("{CONTAINER}/env")),
    ];
    for (key, value, pointer) in cases {
        assert_eq!(part(&json!({ key: value }), DEPLOYMENT, &pointer), value, "{key}");
    }
    assert_eq!(
        part(&json!({"podLabels": labels}), DEPLOYMENT, "/spec/template/metadata/labels"),
        json!({"team": "a", "app.kubernetes.io/name": "rljob-operator"}),
        "labels that select pods cannot be replaced"
    );
    let spread = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    let selector = json!({"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}});
    let values = json!({"topologySpreadConstraints": [spread]});
    assert_eq!(
        part(&values, DEPLOYMENT, &format!("{POD}/topologySpreadConstraints/0/labelSelector")),
        selector
    );
    // Maps are merged into the defaults; null removes a default.
    let pools = json!([{"key": "pool", "operator": "In", "values": ["system"]}]);
    let nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": pools}],
    }});
    let affinity = json!({"affinity": {"podAntiAffinity": null, "nodeAffinity": nodes}});
    assert_eq!(
        part(&affinity, DEPLOYMENT, &format!("{POD}/affinity")),
        json!({ "nodeAffinity": nodes })
    );
    let openshift = json!({"podSecurityContext": {
        "runAsUser": null, "runAsGroup": null, "fsGroup": null, "fsGroupChangePolicy": null,
    }});
    assert_eq!(
        part(&openshift, DEPLOYMENT, &format!("{POD}/securityContext")),
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})
    );
}

#[test]
fn values_of_other_objects_are_in_these_objects() {
    let own = |kind: &str| format!("{kind} rljob-system/rljob-operator");
    let crd = "CustomResourceDefinition /rljobs.rljob.dev";
    let keep = json!({
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Prune=false",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    });
    let scrapers = json!([{"podSelector": {"matchLabels": {"app": "prometheus"}}}]);
    let port = |number: u16| json!({"port": number, "protocol": "TCP"});
    let cases = [
        (json!({}), crd.to_owned(), "/metadata/annotations", keep),
        (json!({"crd": {"keep": false}}), crd.to_owned(), "/metadata/annotations", json!(null)),
        (
            json!({"serviceAccount": {"annotations": {"a": "b"}}}),
            own("ServiceAccount"),
            "/metadata/annotations",
            json!({"a": "b"}),
        ),
        (
            json!({"networkPolicy": {"scrapers": scrapers}}),
            own("NetworkPolicy"),
            "/spec/ingress",
            json!([{"ports": [port(8082)], "from": scrapers}]),
        ),
        (
            json!({"networkPolicy": {"apiServerPorts": [16443]}}),
            own("NetworkPolicy"),
            "/spec/egress/1/ports",
            json!([port(16443)]),
        ),
        (json!({}), own("NetworkPolicy"), "/spec/egress/1/to", json!(null)),
        (
            json!({"networkPolicy": {"apiServerCIDRs": ["10.96.0.1/32", "fd00::1/128"]}}),
            own("NetworkPolicy"),
            "/spec/egress/1",
            json!({
                "ports": [port(443), port(6443)],
                "to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}, {"ipBlock": {"cidr": "fd00::1/128"}}],
            }),
        ),
        (
            json!({"jobs": {"namespace": "team-a"}}),
            own("NetworkPolicy"),
            "/spec/egress/2/to/0/namespaceSelector",
            json!({"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}),
        ),
    ];
    for (values, object, pointer, expected) in cases {
        assert_eq!(part(&values, &object, pointer), expected, "{values}: {object}{pointer}");
    }
}

#[test]
fn a_pod_monitor_of_jobs_selects_coordinators_and_engines() {
    let monitor = "PodMonitor rljob-system/rljob-operator-jobs";
    let scrapers = json!({"namespaceSelector": {"team": "monitoring"}});
    let cases = [
        (
            json!({
                "podMonitor": {"jobs": true, "labels": {"team": "a"}},
                "jobs": {"scrapers": scrapers},
            }),
            "/metadata/labels/team",
            json!("a"),
        ),
        (
            json!({"podMonitor": {"jobs": true}, "jobs": {"scrapers": scrapers}}),
            "/spec/namespaceSelector",
            json!({"any": true}),
        ),
        (
            json!({
                "podMonitor": {"jobs": true, "interval": "15s"},
                "jobs": {"namespace": "a", "scrapers": scrapers},
            }),
            "/spec",
            json!({
                "namespaceSelector": {"matchNames": ["a"]},
                "selector": {"matchExpressions": [{
                    "key": "rljob.dev/role", "operator": "In",
                    "values": ["coordinator", "inference", "evaluation", "reward", "teacher"],
                }]},
                "podTargetLabels": ["rljob.dev/job", "rljob.dev/role"],
                "podMetricsEndpoints": [{
                    "port": "http", "path": "/metrics", "interval": "15s",
                    "relabelings": [{
                        "sourceLabels":
                            ["__meta_kubernetes_pod_annotation_rljob_dev_metrics_scheme"],
                        "regex": "(https)", "targetLabel": "__scheme__",
                    }],
                    "tlsConfig": {"insecureSkipVerify": true},
                }],
            }),
        ),
    ];
    for (values, pointer, expected) in cases {
        assert_eq!(part(&values, monitor, pointer), expected, "{values}: {pointer}");
    }
}

#[test]
fn values_of_monitoring_are_in_the_objects_of_prometheus_operator() {
    let own = |kind: &str| format!("{kind} rljob-system/rljob-operator");
    let cases = [
        (
            json!({"podMonitor": {"enabled": true, "interval": "15s", "labels": {"team": "a"}}}),
            own("PodMonitor"),
            "/spec/podMetricsEndpoints/0",
            json!({
                "port": "metrics", "path": "/metrics", "interval": "15s", "honorLabels": true,
            }),
        ),
        (
            json!({"podMonitor": {"enabled": true, "labels": {"team": "a"}}}),
            own("PodMonitor"),
            "/metadata/labels/team",
            json!("a"),
        ),
        (
            json!({"prometheusRule": {"enabled": true, "labels": {"team": "a"}}}),
            own("PrometheusRule"),
            "/metadata/labels/team",
            json!("a"),
        ),
        (
            json!({"prometheusRule": {"enabled": true, "disabled": ["RLJobOperatorDown"]}}),
            own("PrometheusRule"),
            "/spec/groups/0/rules/0/alert",
            json!("RLJobOperatorWatchFailing"),
        ),
    ];
    for (values, object, pointer, expected) in cases {
        assert_eq!(part(&values, &object, pointer), expected, "{values}: {object}{pointer}");
    }
}

#[test]
fn another_service_account_is_used_wherever_the_account_is_named() {
    let values = json!({"serviceAccount": {"create": false, "name": "other"}});
    let account = json!([{"kind": "ServiceAccount", "name": "other", "namespace": NAMESPACE}]);
    let policy = "ValidatingAdmissionPolicy /rljob-operator";
    for (object, pointer, expected) in [
        (DEPLOYMENT, "/spec/template/spec/serviceAccountName", json!("other")),
        ("ClusterRoleBinding /rljob-operator", "/subjects", account.clone()),
        ("RoleBinding rljob-system/rljob-operator", "/subjects", account),
        (
            policy,
            "/spec/matchConditions/0/expression",
            json!("request.userInfo.username == 'system:serviceaccount:rljob-system:other'"),
        ),
    ] {
        assert_eq!(part(&values, object, pointer), expected, "{object}");
    }
}

#[test]
fn an_operator_outside_the_jobs_namespace_may_create_its_token_key() {
    let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]});
    let role = "Role rljob-system/rljob-operator";
    for (namespace, rule) in [("", json!(null)), (NAMESPACE, json!(null)), ("team-a", secrets)] {
        let values = json!({"jobs": {"namespace": namespace}});
        assert_eq!(part(&values, role, "/rules/3"), rule, "{namespace:?}");
    }
}

#[test]
fn helm_lint_finds_nothing_with_any_value_set() {
    let namespaced = json!({
        "jobs": {"namespace": "team-a", "allowHostPath": true},
        "crd": {"install": false}, "podMonitor": {"enabled": true},
        "prometheusRule": {"enabled": true},
    });
    for values in [json!({}), namespaced] {
        let helm = Helm::offline(NAMESPACE).unwrap();
        let arguments = ["lint", "--strict", "--quiet", &Helm::chart(), "--values=-"];
        assert_eq!(helm.run_with_input(&arguments, &values.to_string()).unwrap(), "", "{values}");
    }
}

#[test]
fn an_older_kubernetes_is_refused() {
    let helm = Helm::offline(NAMESPACE).unwrap();
    let arguments = ["template", "rljob", &Helm::chart(), "--kube-version=1.29.0"];
    let message = format!("{:#}", helm.run(&arguments).unwrap_err());
    let reason = "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes";
    assert!(message.contains(reason), "{message}");
}
