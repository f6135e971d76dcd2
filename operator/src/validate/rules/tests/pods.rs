//! Rules of volumes, images and templates of pods.

use serde_json::{Value, json};

use super::super::super::Policy;
use super::super::super::test_support::{merge, minimal};
use super::super::problems;
use super::problems_with;

#[test]
fn host_paths_are_rejected_unless_the_operator_allows_them() {
    let mut job = serde_json::to_value(minimal()).unwrap();
    let host_path = json!({"path": "/srv"});
    merge(
        &mut job["spec"],
        &json!({
            "storage": {"persistentVolumeClaim": null, "hostPath": host_path},
            "volumes": [{"name": "data", "mountPath": "/data", "hostPath": host_path}],
            "trainer": {"template": {"spec": {"volumes": [{"name": "x", "hostPath": host_path}]}}},
        }),
    );
    let job = serde_json::from_value(job).unwrap();
    let paths = |policy| -> Vec<String> {
        problems(&job, policy).into_iter().map(|problem| problem.path).collect()
    };
    assert_eq!(paths(Policy::LOCAL), Vec::<String>::new());
    assert_eq!(
        paths(Policy::of_operator(false)),
        [
            "spec.volumes[0].hostPath",
            "spec.storage.hostPath",
            "spec.trainer.template.spec.volumes[0].hostPath",
        ]
    );
}

#[test]
fn pods_that_download_the_model_separately_need_a_commit() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let rejected = |storage: Value, revision: &str, policy| -> Vec<String> {
        let mut job = serde_json::to_value(minimal()).unwrap();
        let hub = json!({"repo": "lab/tiny", "revision": revision});
        let spec = json!({
            "storage": storage,
            "model": {"path": null, "huggingFace": hub},
            "weightSync": {"method": "Distributed"},
        });
        merge(&mut job["spec"], &spec);
        let job = serde_json::from_value(job).unwrap();
        problems(&job, policy).into_iter().map(|problem| problem.to_string()).collect()
    };
    let bucket = json!({"persistentVolumeClaim": null, "s3": {"bucket": "runs"}});
    let operator = Policy::of_operator(false);
    assert_eq!(
        rejected(bucket.clone(), "main", operator),
        ["spec.model.huggingFace.revision: must be a commit of 40 hexadecimal digits with \
                storage.s3: each pod downloads the model separately"]
    );
    assert_eq!(rejected(bucket.clone(), commit, operator), Vec::<String>::new());
    assert_eq!(rejected(bucket, "main", Policy::LOCAL), Vec::<String>::new());
    assert_eq!(rejected(json!({}), "main", operator), Vec::<String>::new());
}

#[test]
fn a_template_cannot_override_fields_of_the_operator() {
    let container = json!({
        "name": "engine",
        "command": ["sh"],
        "image": "x",
        "resources": {},
        "env": [{"name": "POD_IP", "value": "::"}],
        "volumeMounts": [{"name": "x", "mountPath": "/rljob/runs"}],
    });
    let template = json!({
        "metadata": {"labels": {"rljob.dev/role": "x", "team": "a"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                container,
                {"name": "proxy", "image": "proxy:1", "command": ["p"]},
                {"name": "engin", "env": []},
            ],
            "initContainers": [{"name": "fetch", "image": ""}],
            "volumes": [{"name": "rljob-tmp", "emptyDir": {}}, {"name": "models", "emptyDir": {}}],
        },
    });
    let sets = "the operator sets this field; remove it";
    let image = "is missing; the operator sets that of `engine` only";
    let path = "spec.inference.template.spec";
    assert_eq!(
        problems_with(&json!({"inference": {"template": template}})),
        [
            format!("spec.inference.template.metadata.labels.rljob.dev/role: {sets}"),
            format!("{path}.restartPolicy: {sets}"),
            format!("{path}.containers[0].volumeMounts[0].mountPath: {sets}"),
            format!("{path}.containers[0].command: {sets}"),
            format!("{path}.containers[0].resources: {sets} and use spec.inference.resources"),
            format!("{path}.containers[0].image: {sets} and use spec.inference.image"),
            format!("{path}.containers[0].env[0]: {sets}"),
            format!("{path}.containers[2].image: {image}"),
            format!("{path}.initContainers[0].image: {image}"),
            format!("{path}.volumes[0].name: names that start with `rljob-` are reserved"),
            format!("{path}.volumes[1].name: `models` is the name of a volume of spec.volumes"),
        ]
    );
    let wrong = json!({"inference": {"template": {"spec": {"nodeSelector": {"a": 1}}}}});
    assert_eq!(
        problems_with(&wrong),
        [format!("{path}.nodeSelector.a: invalid type: integer `1`, expected a string")]
    );
}

#[test]
fn commands_of_rewards_cannot_be_let_out_of_their_container() {
    let template = json!({"spec": {
        "shareProcessNamespace": true, "hostPID": false, "automountServiceAccountToken": true,
        "containers": [{
            "name": "rewards", "args": ["x"], "image": "judge:1",
            "volumeMounts": [{"name": "rljob-tokens", "mountPath": "/mnt"}],
        }],
    }});
    let rewards = json!([{"name": "judge", "command": {"command": ["judge"]}}]);
    let path = "spec.coordinator.template.spec";
    let why = "must not be true: it gives the commands of rewards access to tokens";
    assert_eq!(
        problems_with(&json!({"rewards": rewards, "coordinator": {"template": template}})),
        [
            format!(
                "{path}.containers[0].volumeMounts[0].name: \
                 names that start with `rljob-` are reserved"
            ),
            format!("{path}.containers[0].args: the operator sets this field; remove it"),
            format!("{path}.shareProcessNamespace: {why}"),
            format!("{path}.automountServiceAccountToken: {why}"),
        ]
    );
}

#[test]
fn engines_of_a_run_in_a_bucket_cannot_read_its_files() {
    let s3 = json!({"persistentVolumeClaim": null, "s3": {"bucket": "runs"}});
    let in_bucket = |more: Value| {
        let mut spec = json!({
            "storage": s3, "weightSync": {"method": "Distributed"},
            "restoreFrom": {"s3": {"uri": "s3://other/lab/a/checkpoints/step-2.attempt-0"}},
        });
        merge(&mut spec, &more);
        problems_with(&spec)
    };
    assert_eq!(in_bucket(json!({})), Vec::<String>::new());
    assert_eq!(
        in_bucket(json!({"weightSync": {"method": "Disk"}, "model": {
            "path": null, "rljob": {"name": "warmup"},
        }, "volumes": [
            {"name": "keys", "mountPath": "/rljob/s3", "configMap": {"name": "x"}}
        ]})),
        [
            "spec.volumes[0].mountPath: `/rljob/s3` covers a folder that rljob uses: /rljob/runs, \
                /rljob/config, /rljob/tokens, /rljob/s3, /rljob/hub, /rljob/secrets, \
                /rljob/rewards, /tmp, /dev/shm",
            "spec.model.rljob: needs a volume: engines cannot read a model from storage.s3; copy \
                the export to a volume and set model.path",
            "spec.weightSync.method: must be Distributed: engines cannot read weights from \
                storage.s3; or store the run on a volume",
        ]
    );
    assert_eq!(
        in_bucket(json!({"storage": {"s3": null, "hostPath": {"path": "/srv"}}})),
        ["spec.restoreFrom.s3: needs storage.s3, which configures the access"]
    );
}
