//! Tokens of servers outside the job.

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeMount};
use serde_json::json;

use super::super::pin::Pinned;
use super::super::tokens::TokenKey;
use super::super::*;
use super::{pod_of, settings};
use crate::decide::WantedRoles;
use crate::validate::test_support::with_spec;

/// The volume of tokens, and its mounts by container.
fn secrets_of(pod: &PodSpec) -> (Option<Volume>, Vec<(String, VolumeMount)>) {
    let name = "rljob-secrets";
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == name);
    let of = |container: &Container| {
        let mounts = container.volume_mounts.iter().flatten();
        let mounts = mounts.filter(|mount| mount.name == name).cloned();
        mounts.map(|mount| (container.name.clone(), mount)).collect::<Vec<_>>()
    };
    let containers = pod.init_containers.iter().flatten().chain(&pod.containers);
    (volume.cloned(), containers.flat_map(of).collect())
}

#[test]
fn tokens_of_servers_are_mounted_once_each_into_the_container_that_calls_them() {
    let tool = |name: &str, kind: &str, secret: serde_json::Value| {
        json!({"name": name, "description": name, kind: {
            "url": "https://tools.lab", "tokenSecretRef": secret,
        }})
    };
    let job = with_spec(&json!({
        "rewards": [
            {"name": "judge", "http": {
                "url": "https://judge.lab", "tokenSecretRef": {"name": "judge", "key": "v2"},
            }},
            {"name": "program", "command": {"command": ["score"]}},
        ],
        "dataset": {"train": {"format": "Chat"}},
        "rollout": {"workflow": {"tools": {"tools": [
            tool("add", "http", json!({"name": "tools"})),
            tool("find", "mcp", json!({"name": "tools", "key": "token"})),
        ]}}},
        "storage": {"persistentVolumeClaim": null, "s3": {"bucket": "runs"}},
        "weightSync": {"method": "Distributed"},
    }));
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let built = build(&job, WantedRoles::Everything, &settings(), &tokens, &Pinned::default());
    let sets: [_; 3] = built.stateful_sets.try_into().unwrap();
    let [engine, coordinator, trainer] = sets.each_ref().map(pod_of);
    for pod in [engine, trainer] {
        assert_eq!(secrets_of(&pod), (None, vec![]));
    }
    assert_eq!(coordinator.containers.len(), 2, "the second one runs commands");
    let file = |name: &str, key: &str| {
        let items = [json!({"key": key, "path": format!("{name}/{key}")})];
        json!({"secret": {"name": name, "items": items}})
    };
    let volume = json!({"name": "rljob-secrets", "projected": {
        "defaultMode": 0o440, "sources": [file("judge", "v2"), file("tools", "token")],
    }});
    let mount = json!({"name": "rljob-secrets", "mountPath": "/rljob/secrets", "readOnly": true});
    let mount = ("coordinator".to_owned(), serde_json::from_value(mount).unwrap());
    let expected = (Some(serde_json::from_value(volume).unwrap()), vec![mount]);
    assert_eq!(secrets_of(&coordinator), expected);
}
