//! PodGroups of other owners, which the operator's account cannot change: its permissions cover
//! every PodGroup of a scheduler, and the admission policy those that no RLJob controls.

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::keys::denied;
use super::super::operator::LIMIT;
use super::gangs;

/// A PodGroup of each scheduler that no RLJob controls.
fn pod_groups(name: &str) -> [(&'static str, Value); 3] {
    let group = |api: &str, spec: &Value| {
        let metadata = json!({ "name": name });
        json!({"apiVersion": api, "kind": "PodGroup", "metadata": metadata, "spec": spec})
    };
    let native = json!({"schedulingPolicy": {"gang": {"minCount": 2}}});
    [
        ("scheduling.k8s.io", group("scheduling.k8s.io/v1beta1", &native)),
        ("scheduling.x-k8s.io", group("scheduling.x-k8s.io/v1alpha1", &json!({"minMember": 2}))),
        ("scheduling.volcano.sh", group("scheduling.volcano.sh/v1beta1", &json!({"minMember": 2}))),
    ]
}

#[test]
fn the_operators_account_reaches_no_foreign_pod_group() {
    let namespace = Namespace::create(&gangs().cluster, "foreign").unwrap();
    for (_, group) in pod_groups("other") {
        namespace.kubectl.run_with_input(&["create", "-f-"], &group.to_string()).unwrap();
    }
    let apply = ["apply", "--server-side", "-f-"];
    for (api, group) in pod_groups("other") {
        let changes = "changes only objects that an RLJob controls";
        let text = group.to_string();
        // The policy is effective some seconds after it is created.
        wait_until("the policy to be effective", LIMIT, || {
            Ok(denied(&namespace, &apply, &text).contains(changes))
        })
        .unwrap_or_else(|error| panic!("{error:#}: {}", denied(&namespace, &apply, &text)));
        let error = denied(&namespace, &["delete", &format!("podgroup.{api}/other")], "");
        assert!(error.contains(changes), "{api}: {error}");
    }
    for (api, group) in pod_groups("new") {
        let error = denied(&namespace, &["create", "-f-"], &group.to_string());
        assert!(error.contains("creates only objects that an RLJob controls"), "{api}: {error}");
    }
}
