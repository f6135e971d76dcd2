//! Time from the creation of an RLJob to the creation of its last child, compared with single
//! creates at the same API server, alternating. Runs a real API server without nodes and the
//! operator binary.
//!
//! The ratio is (time to the last child) ÷ (children × time of one create).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::stream::select_all;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, Resource};
use rljob_crds::RLJob;
use rljob_tests::bench::{Aim, median, row};
use rljob_tests::{Cluster, files};
use serde::de::DeserializeOwned;
use serde_json::json;

#[path = "scale/job.rs"]
mod job;

use job::{CHILDREN, job};

/// Measured jobs, after one warm-up job.
const ROUNDS: usize = 15;
const AIM: f64 = 5.0;
/// Timeout of every wait.
const LIMIT: Duration = Duration::from_secs(90);

fn api<K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>>(
    client: &Client,
) -> Api<K> {
    Api::default_namespaced(client.clone())
}

/// Kind and name of each new child of any job, from watches.
fn children<K>(client: &Client) -> futures::stream::BoxStream<'static, String>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let labelled = watcher::Config::default().labels("rljob.dev/job");
    let seen = watcher(api::<PartialObjectMeta<K>>(client), labelled).touched_objects();
    seen.map_ok(|object| format!("{}/{}", K::kind(&()), object.metadata.name.unwrap_or_default()))
        .map(Result::unwrap)
        .boxed()
}

async fn measure(client: Client) {
    let jobs = api::<RLJob>(&client);
    let kinds = [
        children::<Secret>,
        children::<ConfigMap>,
        children::<NetworkPolicy>,
        children::<PodDisruptionBudget>,
        children::<Service>,
        children::<StatefulSet>,
    ];
    let mut events = select_all(kinds.map(|children| children(&client)));
    let (mut applies, mut creates) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let name = format!("job-{round:02}");
        let start = Instant::now();
        jobs.create(&PostParams::default(), &job(&name)).await.unwrap();
        let mut seen = BTreeSet::new();
        while seen.len() < CHILDREN {
            let next = tokio::time::timeout(LIMIT, events.next()).await;
            let child = next
                .unwrap_or_else(|_| panic!("of {name} only {seen:?} within {} s", LIMIT.as_secs()))
                .unwrap();
            seen.extend(child.contains(&name).then_some(child));
        }
        let apply = start.elapsed();
        let create = time_of_a_create(&client, round).await;
        if round > 0 {
            applies.push(apply.as_secs_f64());
            creates.push(create.as_secs_f64());
        }
        jobs.delete(&name, &DeleteParams::background()).await.unwrap();
    }
    let (apply, create) = (median(applies), median(creates));
    let figures = format!(
        "{CHILDREN} children within {:.1} ms; one create takes {:.1} ms",
        apply * 1e3,
        create * 1e3
    );
    row("apply-children", &figures, apply / (create * CHILDREN as f64), Aim::AtMost(AIM));
}

async fn time_of_a_create(client: &Client, round: usize) -> Duration {
    let object: ConfigMap = serde_json::from_value(
        json!({"metadata": {"name": format!("alone-{round}")}, "data": {"key": "value"}}),
    )
    .unwrap();
    let start = Instant::now();
    api(client).create(&PostParams::default(), &object).await.unwrap();
    start.elapsed()
}

fn main() {
    let cluster = Cluster::start(0).unwrap();
    let kubectl = cluster.kubectl();
    let crd = files::workspace().join("crds/rljob.yaml");
    kubectl.run(&["apply", "--filename", &crd.display().to_string()]).unwrap();
    kubectl.wait_for_definition("rljobs.rljob.dev").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let arguments = [
        format!("KUBECONFIG={}", kubeconfig.display()),
        env!("CARGO_BIN_EXE_rljob-operator").to_owned(),
        "--image=rljob:bench".to_owned(),
        "--namespace=default".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
    ];
    let _operator = cluster.start_program("operator", "env".as_ref(), &arguments).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let read = Kubeconfig::read_from(kubeconfig).unwrap();
        let config =
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        measure(Client::try_from(config).unwrap()).await;
    });
}
