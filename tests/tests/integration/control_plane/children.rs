//! Children of a job: content, ownership, conflicts with foreign objects.

use std::fs;
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::{binary, kubernetes};
use rljob_tests::process::{run, wait_until};
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::{
    KINDS, LIMIT, OWN, Operator, field, namespace_with, wait_for_condition, wait_for_pods,
};
use super::{cluster, job, merge};

/// Paths at which `whole` lacks a part of `part` or differs from it. Lists must have equal length;
/// objects may have more fields. The API server stores no empty lists.
fn differences(path: &str, whole: &Value, part: &Value, found: &mut Vec<String>) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, part) in part {
                differences(
                    &format!("{path}.{key}"),
                    whole.get(key).unwrap_or(&Value::Null),
                    part,
                    found,
                );
            }
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            for (index, (whole, part)) in whole.iter().zip(part).enumerate() {
                differences(&format!("{path}[{index}]"), whole, part, found);
            }
        }
        (Value::Null, Value::Array(part)) if part.is_empty() => {}
        _ if whole == part => {}
        _ => found.push(format!("{path}: {whole} is not {part}")),
    }
}

/// Objects that `rljob render` prints for the job in the cluster.
fn rendered(namespace: &Namespace, image: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.json");
    fs::write(&file, namespace.kubectl.run(&["get", "rljob/sample", "--output=json"]).unwrap())
        .unwrap();
    let text = run(Command::new(binary("rljob").unwrap())
        .args(["render", "--image", image, "--file"])
        .arg(&file))
    .unwrap();
    text.split("---\n").skip(1).map(|document| serde_yaml::from_str(document).unwrap()).collect()
}

#[test]
fn children_equal_the_output_of_render_and_are_owned_by_the_job() {
    let patch = json!({"spec": {
        "volumes": [{"name": "data", "mountPath": "/data", "configMap": {"name": "data"}}],
        "inference": {
            "replicas": 2, "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}},
        },
        "trainer": {"replicas": 2, "processesPerReplica": 2},
    }});
    let namespace = namespace_with("children", &patch);
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 5);
    let rendered = rendered(&namespace, "rljob:a");
    assert_eq!(
        rendered.len(),
        10,
        "Secret, ConfigMap, NetworkPolicy, PodDisruptionBudget, and a Service and a StatefulSet of \
            each role"
    );
    for mut object in rendered {
        let name = format!(
            "{}/{}",
            object["kind"].as_str().unwrap(),
            object["metadata"]["name"].as_str().unwrap()
        );
        let live = namespace.kubectl.get(&["--show-managed-fields", &name]).unwrap();
        // Tokens are generated in the cluster.
        if object["kind"] == "Secret" {
            assert_eq!(keys(&live["data"]), keys(&object["data"]));
            object.as_object_mut().unwrap().remove("data");
        }
        let mut found = Vec::new();
        differences(&name, &live, &object, &mut found);
        assert_eq!(found, Vec::<String>::new());
        let manager = &live["metadata"]["managedFields"][0];
        assert_eq!(
            (&manager["manager"], &manager["operation"]),
            (&json!("rljob.dev/operator"), &json!("Apply")),
            "{name}"
        );
    }
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

fn keys(object: &Value) -> Vec<&String> {
    object.as_object().into_iter().flat_map(|fields| fields.keys()).collect()
}

#[test]
fn pods_of_a_run_in_a_bucket_share_no_volume_and_mount_keys_only_where_needed() {
    let source = json!({
        "bucket": "runs", "prefix": "team", "endpoint": "https://s3.example:9000",
        "credentialsSecretRef": {"name": "bucket-keys"},
    });
    let namespace = namespace_with(
        "bucket",
        &json!({
            "spec": {
                "storage": {"hostPath": null, "s3": source},
                "weightSync": {"method": "Distributed"},
            },
        }),
    );
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let volumes = |role: &str, of: &str| {
        field(
            &namespace,
            &format!("pod/sample-{role}-0"),
            &format!(".spec.volumes[?(@.name=='{of}')]"),
        )
    };
    for role in ["coordinator", "trainer", "inference"] {
        assert_eq!(
            volumes(role, "rljob-storage"),
            r#"{"emptyDir":{"sizeLimit":"1Ti"},"name":"rljob-storage"}"#,
            "{role}"
        );
        let keys = if role == "inference" {
            ""
        } else {
            r#"{"name":"rljob-s3","secret":{"defaultMode":288,"secretName":"bucket-keys"}}"#
        };
        assert_eq!(volumes(role, "rljob-s3"), keys, "{role}");
    }
    let config: Value =
        serde_json::from_str(&field(&namespace, "configmap/sample-run", ".data['run\\.json']"))
            .unwrap();
    let prefix = format!("team/{}/sample", namespace.name);
    let expected = json!({
        "bucket": "runs", "prefix": prefix, "endpoint": "https://s3.example:9000",
        "region": "us-east-1", "credentials": "/rljob/s3",
    });
    assert_eq!(config["bucket"], expected);
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

#[test]
fn a_deleted_job_leaves_nothing_behind() {
    let namespace = namespace_with("delete", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    let left = || namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]);
    wait_until("the job's objects to be deleted", LIMIT, || Ok(left()?.is_empty())).unwrap();
}

#[test]
fn a_rejected_child_stalls_the_job_until_it_is_accepted() {
    let namespace = Namespace::create(cluster(), "quota").unwrap();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"count/statefulsets.apps": "0"}},
    });
    namespace.kubectl.apply(&quota.to_string()).unwrap();
    let operator = Operator::start(&namespace, "rljob:a");
    namespace.kubectl.apply(&job().to_string()).unwrap();
    wait_for_condition(&namespace, "Stalled");
    let summary = ".status.conditions[?(@.type=='Succeeded')]";
    assert_eq!(field(&namespace, "rljob/sample", &format!("{summary}.reason")), "ChildRejected");
    let message = field(&namespace, "rljob/sample", &format!("{summary}.message"));
    assert!(
        message.starts_with("the API server rejected StatefulSet sample-inference: ")
            && message.contains("exceeded quota"),
        "{message}"
    );
    namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
    // Any change of the object triggers a retry.
    namespace.kubectl.run(&["annotate", "rljob/sample", "example.com/quota=removed"]).unwrap();
    wait_for_pods(&namespace, 3);
    wait_for_condition(&namespace, "Stalled=False");
    drop(operator);
}

/// One foreign object of every kind except Secret, whose name contains a part of the job's UID.
fn foreign_objects() -> [Value; 5] {
    let own = json!({"matchLabels": {"app": "another"}});
    let object = |version: &str, kind: &str, name: &str, more: Value| {
        // The operator's label does not imply ownership.
        let mut object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": {"name": name, "labels": {"rljob.dev/job": "sample"}},
        });
        merge(&mut object, &more);
        object
    };
    let pod = json!({
        "metadata": {"labels": {"app": "another"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    [
        object("v1", "ConfigMap", "sample-run", json!({"data": {"run.json": "another's"}})),
        object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "sample",
            json!({"spec": {"podSelector": own}}),
        ),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            "sample-inference",
            json!({"spec": {"minAvailable": 1, "selector": own}}),
        ),
        object(
            "v1",
            "Service",
            "sample-trainer",
            json!({
                "spec": {
                    "clusterIP": "None", "selector": {"app": "another"}, "ports": [{"port": 80}],
                },
            }),
        ),
        object(
            "apps/v1",
            "StatefulSet",
            "sample-coordinator",
            json!({"spec": {"replicas": 0, "serviceName": "x", "selector": own, "template": pod}}),
        ),
    ]
}

#[test]
fn foreign_objects_are_left_unchanged_and_survive_the_job() {
    let namespace = Namespace::create(cluster(), "foreign").unwrap();
    let names = foreign_objects().map(|object| {
        format!(
            "{}/{}",
            object["kind"].as_str().unwrap(),
            object["metadata"]["name"].as_str().unwrap()
        )
    });
    for object in foreign_objects() {
        namespace.kubectl.apply(&object.to_string()).unwrap();
    }
    let specs = || {
        names.each_ref().map(|name| {
            namespace
                .kubectl
                .get(&[name.as_str()])
                .map(|object| {
                    json!([
                        object["metadata"]["uid"],
                        object["metadata"]["labels"],
                        object["metadata"]["ownerReferences"],
                        object["spec"],
                        object["data"]
                    ])
                })
                .unwrap()
        })
    };
    let before = specs();
    let operator = Operator::start(&namespace, "rljob:a");
    namespace.kubectl.apply(&job().to_string()).unwrap();
    wait_for_condition(&namespace, "Stalled");
    let named = names.each_ref().map(|name| name.replace('/', " ")).join(", ");
    let message = format!(
        "the job needs these names, and other owners have objects with them: {named}; \
            rename the job or delete the objects"
    );
    assert_eq!(
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message"),
        message
    );
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    drop(operator);
    assert_eq!(specs(), before);
    let all = namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]).unwrap();
    assert_eq!(all.lines().count(), names.len(), "unexpected objects were created: {all}");
}

#[test]
fn an_invalid_spec_that_the_crd_accepts_stalls_the_job_with_every_problem() {
    let volume = |name: &str, path: &str| {
        json!({
            "name": name, "mountPath": path, "configMap": {"name": "data"},
        })
    };
    let namespace = namespace_with(
        "invalid",
        &json!({
            "spec": {
                "volumes": [volume("data", "/tmp/data"), volume("more", "/data/../more")],
                "training": {"minibatches": 5},
            },
        }),
    );
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_condition(&namespace, "Stalled");
    let message =
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    for path in
        ["spec.volumes[0].mountPath: ", "spec.volumes[1].mountPath: ", "spec.rollout.batchSize: "]
    {
        assert!(message.contains(path), "{path:?} is not in: {message}");
    }
    assert_eq!(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"]).unwrap(), "");
}

/// Without nodes, admitted pods stay pending.
#[test]
fn pods_meet_the_restricted_pod_security_standard() {
    let namespace = Namespace::create(cluster(), "restricted").unwrap();
    namespace
        .kubectl
        .run(&[
            "label",
            "namespace",
            &namespace.name,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .unwrap();
    let claim = |name: &str| json!({"claimName": name});
    let mut job = job();
    let volume = json!({
        "name": "models", "mountPath": "/models", "readOnly": true,
        "persistentVolumeClaim": claim("models"),
    });
    let patch = json!({
        "spec": {
            "storage": {"hostPath": null, "persistentVolumeClaim": claim("runs")},
            "volumes": [volume],
        },
    });
    merge(&mut job, &patch);
    namespace.kubectl.apply(&job.to_string()).unwrap();
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let system = cluster().kubectl().in_namespace("rljob-system");
    let pods = || {
        system.run(&[
            "get",
            "pods",
            "--selector=app.kubernetes.io/name=rljob-operator",
            "--output=name",
        ])
    };
    wait_until("the Deployment's two pods", LIMIT, || Ok(pods()?.lines().count() == 2)).unwrap();
}

#[test]
fn the_operator_has_minimal_permissions() {
    let user = "--as=system:serviceaccount:rljob-system:rljob-operator";
    let may = |verb: &str, resource: &str| {
        let mut kubectl = Command::new(kubernetes("kubectl").unwrap());
        kubectl.arg("--kubeconfig").arg(cluster().kubeconfig()).args([
            "auth",
            "can-i",
            verb,
            resource,
            "--namespace=default",
            user,
        ]);
        // kubectl exits with 1 if the answer is no.
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

/// Roles that a job without them has no objects of.
fn added_roles() -> Value {
    json!({
        "evaluation": {"engines": {"replicas": 2}},
        "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"]}]},
        "verifiers": {"minReplicas": 1, "maxReplicas": 2},
        "rewards": [
            {"name": "tests", "code": {}},
            {"name": "scored", "model": {
                "path": "/data/judge", "engines": {"replicas": 2}, "text": "{{completion}}",
            }},
        ],
    })
}

#[test]
fn roles_that_a_suspended_job_drops_lose_their_objects() {
    let spec = json!({
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "dataset": {"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer",
        }},
        "rewards": [{"name": "tests", "code": {}}],
    });
    let fixture = Fixture::running("dropped-roles", &json!({ "spec": &spec }));
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    fixture.wait_until_idle();
    let without = fixture.end_state();
    fixture.patch(&added_roles());
    let added = ["sample-evaluation", "sample-reward", "sample-trainer-frozen", "sample-verifier"];
    wait_until("the StatefulSets of the roles", LIMIT, || {
        let sets = fixture.list("apis/apps/v1", "statefulsets");
        let names: Vec<_> = sets.iter().map(|set| &set["metadata"]["name"]).collect();
        Ok(added.iter().all(|name| names.contains(&&json!(name))))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    fixture.patch(&json!({
        "evaluation": null, "trainer": {"groups": null}, "verifiers": null,
        "rewards": spec["rewards"],
    }));
    fixture.wait_for_end_state(&without, "the roles were dropped");
}
