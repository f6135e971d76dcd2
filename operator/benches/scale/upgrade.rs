//! An upgrade of the operator with running jobs: an operator with another default image replaces
//! the first one, and reconciles every job.
//!
//! ```text
//!  all jobs Running ─▶ objects before ─▶ the new operator, a pass of every job
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

use super::operator::Operator;
use super::rljobs::{Bench, kinds};
use super::stage::{SETTLE, until};

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

pub async fn measure(jobs: usize) {
    let mut bench = Bench::start(jobs).await;
    bench.create().await;
    bench.wait_until_running().await;
    let before = objects(&bench).await;

    bench.operator.stop().await;
    let start = Instant::now();
    bench.operator = Operator::start(&bench.stage.cluster, "rljob:next").await;
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
