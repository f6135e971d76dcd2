//! Lower bound: plain StatefulSets, one per job with as many pods as an RLJob, created by this
//! program and reconciled by the StatefulSet controller.

use std::time::Instant;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::core::ApiResource;
use rljob_tests::bench::note;
use serde_json::json;

use super::stage::{Stage, each_job};

/// An inference, a coordinator and a trainer pod.
const PODS: usize = 3;

fn set(name: &str) -> StatefulSet {
    let labels = json!({"app": name});
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": PODS, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "node", "image": "rljob:bench"}]},
            },
        },
    }))
    .unwrap()
}

/// Prints the time until all pods exist.
pub async fn measure(jobs: usize) {
    let stage = Stage::start("app").await;
    let (sets, start): (Api<StatefulSet>, _) =
        (Api::default_namespaced(stage.client.clone()), Instant::now());
    let create = async {
        each_job(jobs, async |name| {
            drop(sets.create(&PostParams::default(), &set(&name)).await.unwrap());
        })
        .await;
        start.elapsed().as_secs_f64()
    };
    let pods = [ApiResource::erase::<Pod>(&())];
    let (created, seconds) =
        tokio::join!(create, stage.wait_for("all pods", &pods, jobs * PODS, start));
    note(
        "scale-floor",
        &format!(
            "{jobs} plain StatefulSets of {PODS} pods were created within {created:.1} s and had \
                all of their pods after {seconds:.1} s"
        ),
    );
}
