//! An upgrade of the chart with running jobs: the operator of the next revision has another default
//! image for jobs, other arguments and replicas. It replaces the first one and reconciles all jobs.
//!
//! ```text
//!  helm install ─▶ all jobs Running ─▶ objects before ─▶ helm upgrade
//!   ─▶ the operator of the new Deployment, a pass of every job
//!   ─▶ objects after: scale-upgrade-pods, scale-upgrade-objects
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use rljob_crds::RLJob;
use rljob_tests::bench::{Aim, note, row};
use rljob_tests::{Cluster, Helm};

use super::operator::Operator;
use super::rljobs::{Bench, kinds};
use super::stage::{SETTLE, Stage, until};

/// Namespace of the release.
const SYSTEM: &str = "rljob-system";

/// UID and resourceVersion by kind and name. The latter changes with every write that changes an
/// object.
type Objects = BTreeMap<(String, String), (Option<String>, Option<String>)>;

/// Jobs, their children and their pods.
async fn objects(bench: &Bench) -> Objects {
    let more = [ApiResource::erase::<Pod>(&()), ApiResource::erase::<RLJob>(&())];
    let mut found = Objects::new();
    for kind in kinds().into_iter().chain(more) {
        let api: Api<DynamicObject> =
            Api::default_namespaced_with(bench.stage.client.clone(), &kind);
        for object in api.list_metadata(&ListParams::default()).await.unwrap() {
            let version = (object.uid(), object.resource_version());
            found.insert((kind.kind.clone(), object.name_any()), version);
        }
    }
    found
}

/// Installs or upgrades the chart with these values.
fn release(helm: &Helm, command: &str, values: &str) {
    let values = format!("--set={values}");
    helm.run(&[command, "rljob", &Helm::chart(), "--create-namespace", &values]).unwrap();
}

/// Waits until the service account of the release may list jobs.
async fn wait_for_permissions(cluster: &Cluster) {
    let account = format!("--as=system:serviceaccount:{SYSTEM}:rljob-operator");
    let ask = ["auth", "can-i", "list", "rljobs.rljob.dev", &account];
    until("permissions", async || cluster.kubectl().run(&ask).is_ok()).await;
}

pub async fn measure(jobs: usize) {
    let stage = Stage::start("rljob.dev/job").await;
    let helm = Helm::new(stage.cluster.kubeconfig(), SYSTEM).unwrap();
    release(&helm, "install", "jobs.allowHostPath=true,jobs.image=rljob:bench");
    wait_for_permissions(&stage.cluster).await;
    let operator = Operator::start_deployed(&stage.cluster, SYSTEM, "operator-first").await;
    let mut bench = Bench::with(stage, operator, jobs);
    bench.create().await;
    bench.wait_until_running().await;
    let before = objects(&bench).await;

    bench.operator.stop().await;
    let values = "jobs.allowHostPath=true,jobs.image=rljob:next,replicas=3,jobs.metrics=false";
    release(&helm, "upgrade", values);
    let start = Instant::now();
    let cluster = &bench.stage.cluster;
    bench.operator = Operator::start_deployed(cluster, SYSTEM, "operator-next").await;
    until("a pass of each", async || {
        let reading = bench.operator.read();
        reading.jobs("Running") >= jobs && reading.passes() >= jobs as f64
    })
    .await;
    let seconds = start.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let (after, writes) = (objects(&bench).await, bench.operator.read().writes());

    let is_pod = |(kind, _): &&(String, String)| kind == "Pod";
    let pods = before.keys().filter(is_pod).count();
    let uid = |objects: &Objects, key| objects.get(key).map(|(uid, _)| uid.clone());
    let replaced =
        before.keys().filter(is_pod).filter(|key| uid(&before, key) != uid(&after, key)).count();
    let changed = before.iter().filter(|(key, value)| after.get(*key) != Some(*value)).count();
    let added = after.len().saturating_sub(before.len());
    note("scale-upgrade", &format!("every job had a pass after {seconds:.1} s, {writes} writes"));
    let figures = format!("of {pods} pods of {jobs} jobs replaced");
    row("scale-upgrade-pods", &figures, replaced as f64, Aim::AtMost(0.0));
    let figures = format!("of {} objects changed or added", before.len());
    row("scale-upgrade-objects", &figures, (changed + added) as f64, Aim::AtMost(0.0));
}
