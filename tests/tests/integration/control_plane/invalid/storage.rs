//! Invalid models, storage, volumes and checkpoints to restore.

use serde_json::{Value, json};

use super::Case;
use crate::control_plane::merge;

#[expect(clippy::too_many_lines, reason = "a table of cases")]
pub(super) fn cases() -> Vec<Case> {
    let volume = |fields: Value| json!({"spec": {"volumes": [fields]}});
    let bucket = |fields: Value| {
        let mut spec = json!({
            "storage": {"hostPath": null, "s3": {"bucket": "runs"}},
            "weightSync": {"method": "Distributed"},
        });
        merge(&mut spec, &fields);
        json!({"spec": spec})
    };
    vec![
        (json!({"spec": {"restoreFrom": {"path": "/runs/a/b"}}}), "spec.restoreFrom.path"),
        (json!({"spec": {"restoreFrom": {}}}), "set exactly one of rljob, path and s3"),
        (
            json!({"spec": {"restoreFrom": {"s3": {"uri": "https://runs/step-1.attempt-0"}}}}),
            "spec.restoreFrom.s3.uri",
        ),
        (
            json!({"spec": {"model": {"rljob": {"name": "other"}}}}),
            "set exactly one of path, huggingFace and rljob",
        ),
        (
            json!({"spec": {"model": {"path": null, "huggingFace": {"repo": "a b"}}}}),
            "spec.model.huggingFace.repo",
        ),
        (
            json!({"spec": {"model": {
                "path": null, "rljob": {"name": "other"}, "weights": "Random",
            }}}),
            "rljob names trained weights: weights must be Pretrained",
        ),
        (
            json!({"spec": {"storage": {"hostPath": null}}}),
            "set exactly one of persistentVolumeClaim, hostPath and s3",
        ),
        (
            bucket(json!({"storage": {"hostPath": {"path": "/srv/runs"}}})),
            "set exactly one of persistentVolumeClaim, hostPath and s3",
        ),
        (bucket(json!({"storage": {"s3": {"bucket": "Runs"}}})), "spec.storage.s3.bucket"),
        (
            bucket(json!({"storage": {"s3": {"endpoint": "s3.example"}}})),
            "spec.storage.s3.endpoint",
        ),
        (bucket(json!({"storage": {"s3": {"prefix": "/team"}}})), "spec.storage.s3.prefix"),
        (
            bucket(json!({"weightSync": {"method": "Disk"}})),
            "engines cannot read weights from storage.s3: set weightSync.method to Distributed",
        ),
        (
            bucket(json!({"model": {"path": null, "rljob": {"name": "other"}}})),
            "engines cannot read a model from storage.s3",
        ),
        (
            bucket(json!({"rollbackTo": {"step": 2}})),
            "rollbackTo needs a run on a volume: create an RLJob with restoreFrom.rljob",
        ),
        (
            json!({"spec": {"restoreFrom": {"s3": {"uri": "s3://runs/a/step-1.attempt-0"}}}}),
            "restoreFrom.s3 needs storage.s3",
        ),
        (
            volume(json!({"name": "data", "mountPath": "/data"})),
            "set exactly one of configMap, csi, downwardAPI",
        ),
        (
            volume(json!({"name": "data", "mountPath": "data", "configMap": {"name": "x"}})),
            "spec.volumes[0].mountPath",
        ),
    ]
}
