//! What the operator's account can reach beyond the objects of jobs: no foreign Secret or object,
//! and a token key that can be renewed.

use std::collections::BTreeSet;

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace};
use serde_json::{Value, json};

use super::operator::{self, ACCOUNT, LIMIT, OWN, Operator, namespace_in, wait_for_pods};

/// Sends an object, or a patch of one, with the operator's account. Returns the API server's error.
pub(super) fn denied(namespace: &Namespace, arguments: &[&str], input: &str) -> String {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--as", ACCOUNT]).collect();
    match namespace.kubectl.run_with_input(&arguments, input) {
        Ok(answer) => format!("allowed: {answer}"),
        Err(error) => format!("{error:#}"),
    }
}

fn secret(name: &str, kind: &str, metadata: &Value) -> String {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name},
        "stringData": {"password": "hidden"},
    });
    super::merge(&mut object, &json!({"metadata": metadata}));
    object.to_string()
}

#[test]
fn the_operators_account_reaches_no_foreign_object() {
    let namespace = Namespace::create(super::cluster(), "foreign").unwrap();
    let kubectl = &namespace.kubectl;
    kubectl.run_with_input(&["create", "-f-"], &secret("other", "Opaque", &json!({}))).unwrap();
    kubectl.run(&["create", "configmap", "other"]).unwrap();
    let changes = "changes only objects that an RLJob controls";
    // An apply needs no permission to get the object, and returns it.
    let apply = ["apply", "--server-side", "-f-", "--output=json"];
    let empty = |kind: &str| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "other"}}).to_string()
    };
    // The policy is effective some seconds after it is created.
    wait_until("the policy to be effective", LIMIT, || {
        Ok(denied(&namespace, &apply, &empty("Secret")).contains(changes))
    })
    .unwrap();
    let dry_run = [&apply[..], &["--dry-run=server"]].concat();
    for (arguments, kind) in [
        (&dry_run[..], "Secret"),
        (&apply, "ConfigMap"),
        (&["delete", "secret", "other"], ""),
        (&["delete", "configmap", "other"], ""),
    ] {
        let error = denied(&namespace, arguments, &empty(kind));
        assert!(error.contains(changes) && !error.contains("aGlkZGVu"), "{arguments:?}: {error}");
    }

    let create = ["create", "-f-"];
    let error = denied(&namespace, &create, &secret("new", "Opaque", &json!({})));
    assert!(error.contains("creates only objects that an RLJob controls"), "{error}");
    let owner = json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "x", "uid": "x",
        "controller": true,
    });
    let account = json!({
        "ownerReferences": [owner],
        "annotations": {"kubernetes.io/service-account.name": "default"},
    });
    let kind = "kubernetes.io/service-account-token";
    let error = denied(&namespace, &create, &secret("token", kind, &account));
    assert!(error.contains("creates only Secrets of type Opaque"), "{error}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    kubectl.run_with_input(&create, &pod.to_string()).unwrap();
    let error = denied(&namespace, &["delete", "pod", "other"], "");
    assert!(error.contains("only pods with the label rljob.dev/job"), "{error}");
}

/// The tokens and certificates in the Secret of the job.
fn tokens(namespace: &Namespace) -> anyhow::Result<BTreeSet<String>> {
    let mut secrets = namespace.kubectl.get(&["secrets", OWN])?;
    let data = secrets["items"][0]["data"].take();
    let values = data.as_object().into_iter().flatten();
    Ok(values.map(|(name, value)| format!("{name} {value}")).collect())
}

#[test]
fn a_deleted_token_key_is_replaced_and_running_jobs_get_new_tokens() {
    let cluster = Cluster::start(0).unwrap();
    operator::install(&cluster.kubectl()).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    let operator = Operator::start_in(&cluster, "rljob:a", &[]);
    let namespace = namespace_in(&cluster, "keys", &json!({}));
    wait_for_pods(&namespace, 3);
    let before = tokens(&namespace).unwrap();
    assert_eq!(before.len(), 7, "the tokens and certificates of the job");
    let pods = || namespace.kubectl.run(&["get", "pods", OWN, "--output=jsonpath={..uid}"]);
    let running = pods().unwrap();

    let system = cluster.kubectl().in_namespace("rljob-system");
    system.run(&["delete", "secret", "rljob-operator-token-key"]).unwrap();
    drop(operator);
    let _operator = Operator::start_in(&cluster, "rljob:b", &[]);
    wait_until("new tokens", LIMIT, || Ok(tokens(&namespace)?.is_disjoint(&before))).unwrap();
    assert_eq!(pods().unwrap(), running, "no pod restarts");
    assert_eq!(tokens(&namespace).unwrap().len(), 7);
}
