//! Simulated kubelet and coordinators: pods are running as soon as they exist, and every
//! coordinator pod has a simulated coordinator.
//!
//! All pod addresses are local routes of the cluster's network; one server responds for all
//! coordinators and distinguishes them by the requested address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, put};
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use rljob_crds::names::{CONTAINER_REWARDS, RUN_CONFIG_FILE};
use rljob_http::{Role, ServerTls};
use rljob_protocol::peer::PROTOCOL_HEADER;
use rljob_tests::api::runtime;
use rljob_tests::{Api, Namespace, TlsListener};
use serde_json::{Value, json};

use super::cluster;

/// Network of the simulated pods.
const POD_NETWORK: &str = "10.200.0.0/16";
/// Port of the coordinators' metrics, without TLS.
pub(super) const METRICS_PORT: u16 = 8081;
/// Poll interval of pods.
const PERIOD: Duration = Duration::from_millis(100);

/// State shared by a job's coordinators, as in a run directory.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts that tests set")]
pub(super) struct Run {
    pub(super) attempt: u32,
    pub(super) restarts: u32,
    pub(super) step: u32,
    /// Complete checkpoints to report, oldest first.
    pub(super) checkpoints: Vec<&'static str>,
    /// Fixed phase to report: `Finished`, `Failed`, `Starting` or `Restarting`.
    pub(super) end: Option<&'static str>,
    /// Cause of the outage of a verifier.
    pub(super) reward_outage: Option<&'static str>,
    /// Load of verifier pods to report, and the pods that the operator named last.
    pub(super) verifier_load: Value,
    pub(super) named_verifiers: Value,
    /// Why the container of programs of verifier pods does not start.
    pub(super) verifier_waiting: Option<Value>,
    /// Whether the coordinator announces the newest protocol.
    pub(super) is_newest: bool,
    /// Desired state that a coordinator of the run received last.
    pub(super) desired: Value,
    /// Groups of the trainer to report, and the supervisors that the operator named last.
    pub(super) groups: Value,
    pub(super) named_supervisors: Value,
    /// Why the journal takes no writes.
    pub(super) journal_failure: Option<&'static str>,
    /// Memory plan of the learners, and metrics of the newest step.
    pub(super) memory: Value,
    pub(super) metrics: Value,
    /// Until when the time without requests of idle engines is counted; `None` if they are busy.
    pub(super) idle_since: Option<Instant>,
    /// That time, summed over engines.
    idle_seconds: f64,
    /// Whether the learners wait for samples; else they train.
    pub(super) are_learners_starved: bool,
    /// Seconds of the learners that train and that wait, at the last scrape.
    learner_seconds: [f64; 2],
    scraped_at: Option<Instant>,
    /// State of the engines, if not `Ready`.
    pub(super) engine_state: Option<&'static str>,
    /// Whether new pods stay pending, as without nodes.
    pub(super) are_pods_pending: bool,
    /// Whether requests fail with 503.
    pub(super) is_silent: bool,
    /// UID of the job that owns the run. A recreated job continues it with new fencing numbers.
    owner: Value,
    /// Highest epoch received.
    pub(super) epoch: u64,
    /// Number of requests rejected because of a lower epoch.
    pub(super) rejected: u32,
    /// Number of status requests.
    pub(super) status_requests: u32,
}

impl Run {
    fn claim(&mut self, owner: Value) {
        if self.owner != owner {
            (self.owner, self.epoch) = (owner, 0);
        }
    }
}

/// One coordinator pod.
#[derive(Clone, Default)]
struct Coordinator {
    run: Arc<Mutex<Run>>,
    /// Body of the last `PUT /v1/desired`.
    desired: Value,
    /// `training.steps` of the run configuration that the pod mounts.
    total_steps: Value,
    /// The pod's certificate.
    tls: Option<ServerTls>,
}

/// Coordinators by address.
type Coordinators = Arc<Mutex<HashMap<String, Coordinator>>>;

struct SimulatedCluster {
    coordinators: Coordinators,
    api: Api,
    addresses: AtomicU32,
}

static SIMULATED_CLUSTER: LazyLock<SimulatedCluster> = LazyLock::new(|| {
    let cluster = cluster();
    cluster.run("ip", &["route", "add", "local", POD_NETWORK, "dev", "lo"]).unwrap();
    let listener = cluster
        .listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, rljob_crds::names::COORDINATOR_PORT)))
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let coordinators = Coordinators::default();
    let metrics =
        axum::Router::new().route("/metrics", get(metrics)).with_state(coordinators.clone());
    let plain = cluster.listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, METRICS_PORT))).unwrap();
    plain.set_nonblocking(true).unwrap();
    runtime().spawn(async move {
        axum::serve(tokio::net::TcpListener::from_std(plain).unwrap(), metrics).await
    });
    let router = axum::Router::new()
        .route("/v1/desired", put(desired))
        .route("/v1/status", get(status))
        .with_state(coordinators.clone());
    let certificates = coordinators.clone();
    let certificate =
        move |address: IpAddr| certificates.lock().get(&address.to_string())?.tls.clone();
    runtime().spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(TlsListener::new(listener, certificate), router).await
    });
    SimulatedCluster { coordinators, api: cluster.api().unwrap(), addresses: AtomicU32::new(0) }
});

fn address(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    host.split(':').next().unwrap_or_default().to_owned()
}

async fn desired(
    State(coordinators): State<Coordinators>,
    headers: HeaderMap,
    Json(desired): Json<Value>,
) -> Result<[(&'static str, &'static str); 1], StatusCode> {
    let mut coordinators = coordinators.lock();
    let coordinator = coordinators.get_mut(&address(&headers)).ok_or(StatusCode::NOT_FOUND)?;
    let epoch = desired["epoch"].as_u64().unwrap();
    let mut run = coordinator.run.lock();
    if run.is_silent {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    if epoch < run.epoch {
        run.rejected += 1;
        return Err(StatusCode::CONFLICT);
    }
    run.epoch = epoch;
    // Coordinators that announce this version get the addresses of verifier pods, of groups and of
    // engines that only evaluate.
    let is_newest = run.is_newest || !run.verifier_load.is_null() || !run.groups.is_null();
    let protocol = if is_newest { "3" } else { "1" };
    drop(run);
    coordinator.run.lock().desired = desired.clone();
    coordinator.desired = desired;
    Ok([(PROTOCOL_HEADER, protocol)])
}

async fn status(
    State(coordinators): State<Coordinators>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    let coordinators = coordinators.lock();
    let Coordinator { run, desired, total_steps, tls: _ } =
        coordinators.get(&address(&headers)).ok_or(StatusCode::NOT_FOUND)?;
    let mut run = run.lock();
    run.status_requests += 1;
    if run.is_silent {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let phase = match (run.end, desired["mode"].as_str()) {
        (Some(end), Some(_)) => end,
        (None, Some("Drain")) => "Drained",
        (None, Some("Run")) => "Running",
        _ => "Starting",
    };
    let engines: Vec<Value> = desired["engines"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|engine| {
            json!({
                "name": engine["name"], "state": run.engine_state.unwrap_or("Ready"),
                "version": "step-0.attempt-0",
            })
        })
        .collect();
    run.named_verifiers.clone_from(&desired["verifiers"]);
    run.named_supervisors.clone_from(&desired["supervisors"]);
    let groups = if run.groups.is_null() { json!([]) } else { run.groups.clone() };
    let outage =
        run.reward_outage.map(|cause| json!({"reward": "r", "seconds": 1, "cause": cause}));
    Ok(Json(json!({
        "epoch": desired["epoch"], "generation": desired["generation"], "phase": phase,
        "attempt": run.attempt, "restarts": run.restarts, "step": run.step,
        "totalSteps": total_steps, "lastFailure": null, "metrics": run.metrics, "evaluation": null,
        "activity": "Rollouts", "supervisors": [], "groups": groups, "engines": engines,
        "checkpoint": run.checkpoints.last(), "checkpoints": run.checkpoints,
        "rewardOutage": outage, "verifiers": run.verifier_load,
        "journalFailure": run.journal_failure, "memory": run.memory,
    })))
}

/// Time in which engines had no request, and times of learners with GPUs, as a coordinator counts
/// them.
async fn metrics(
    State(coordinators): State<Coordinators>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let coordinators = coordinators.lock();
    let Coordinator { run, desired, .. } =
        coordinators.get(&address(&headers)).ok_or(StatusCode::NOT_FOUND)?;
    let (mut run, now) = (run.lock(), Instant::now());
    if let Some(since) = run.idle_since {
        let engines = desired["engines"].as_array().map_or(0, Vec::len);
        run.idle_seconds += (now - since).as_secs_f64() * engines as f64;
        run.idle_since = Some(now);
    }
    let elapsed = run.scraped_at.replace(now).map_or(0.0, |last| (now - last).as_secs_f64());
    let phase = usize::from(run.are_learners_starved);
    run.learner_seconds[phase] += elapsed;
    let [train, wait] = run.learner_seconds;
    Ok(format!(
        "rljob_engine_idle_seconds_total {}\n\
         rljob_learner_seconds_total{{phase=\"train\"}} {train}\n\
         rljob_learner_seconds_total{{phase=\"wait\"}} {wait}\n\
         rljob_learner_mfu 0.4\n",
        run.idle_seconds
    ))
}

/// Simulated pods of one namespace, until dropped.
pub(super) struct SimulatedPods {
    pub(super) run: Arc<Mutex<Run>>,
    task: tokio::task::JoinHandle<()>,
}

impl SimulatedPods {
    pub(super) fn start(namespace: &Namespace) -> Self {
        let run = Arc::<Mutex<Run>>::default();
        let (name, shared) = (namespace.name.clone(), run.clone());
        let task = runtime().spawn(async move {
            loop {
                let (name, shared) = (name.clone(), shared.clone());
                let _ = tokio::task::spawn_blocking(move || start_pods(&name, &shared)).await;
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self { run, task }
    }
}

impl Drop for SimulatedPods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Marks new pods as running. Errors for pods that are deleted meanwhile are ignored.
fn start_pods(namespace: &str, run: &Arc<Mutex<Run>>) -> anyhow::Result<()> {
    if run.lock().are_pods_pending {
        return Ok(());
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let pods = SIMULATED_CLUSTER.api.get(&path)?;
    let waiting = run.lock().verifier_waiting.clone();
    for pod in pods["items"].as_array().into_iter().flatten() {
        if !pod["status"]["podIP"].is_null() || !pod["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let own = format!("{path}/{}/status", pod["metadata"]["name"].as_str().unwrap_or_default());
        let role = &pod["metadata"]["labels"]["rljob.dev/role"];
        if let Some(waiting) = waiting.as_ref().filter(|_| role == "verifier") {
            SIMULATED_CLUSTER.api.patch(&own, &waiting_status(waiting))?;
            continue;
        }
        let number = SIMULATED_CLUSTER.addresses.fetch_add(1, Ordering::Relaxed);
        let address = format!("10.200.{}.{}", number / 250, number % 250 + 1);
        if role == "coordinator" {
            let mut config = run_config(namespace, pod)?;
            let total_steps = config["spec"]["training"]["steps"].take();
            run.lock().claim(config["uid"].take());
            let tls = Some(certificate(namespace, pod)?);
            let coordinator =
                Coordinator { run: run.clone(), desired: Value::Null, total_steps, tls };
            let mut coordinators = SIMULATED_CLUSTER.coordinators.lock();
            coordinators.insert(address.clone(), coordinator);
        }
        let condition = |type_: &str| json!({"type": type_, "status": "True"});
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({
            "status": {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": conditions, "containerStatuses": null,
            },
        });
        SIMULATED_CLUSTER.api.patch(&own, &status)?;
    }
    Ok(())
}

/// Status of a scheduled pod whose container of programs waits, as its kubelet reports it.
fn waiting_status(waiting: &Value) -> Value {
    let container = json!({
        "name": CONTAINER_REWARDS, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": waiting},
    });
    let scheduled = json!({"type": "PodScheduled", "status": "True"});
    json!({"status": {
        "phase": "Pending", "conditions": [scheduled], "containerStatuses": [container],
    }})
}

/// The coordinator's certificate in the Secret that a pod mounts.
fn certificate(namespace: &str, pod: &Value) -> anyhow::Result<ServerTls> {
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let tokens = volumes.find(|volume| volume["name"] == "rljob-tokens");
    let name = tokens.and_then(|volume| volume["secret"]["secretName"].as_str());
    let name = name.context("the pod mounts no tokens")?;
    let secret =
        SIMULATED_CLUSTER.api.get(&format!("/api/v1/namespaces/{namespace}/secrets/{name}"))?;
    let pem: ByteString = serde_json::from_value(secret["data"][Role::Coordinator.file()].clone())?;
    let uid = secret["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
    Ok(ServerTls::of_pem(&String::from_utf8(pem.0)?, &[Role::Operator.server_name(uid)])?)
}

/// The run configuration in the ConfigMap that a pod mounts.
fn run_config(namespace: &str, pod: &Value) -> anyhow::Result<Value> {
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let name = volumes.find_map(|volume| volume["configMap"]["name"].as_str());
    let name = name.context("the pod mounts no ConfigMap")?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let text = SIMULATED_CLUSTER.api.get(&path)?["data"][RUN_CONFIG_FILE].take();
    Ok(serde_json::from_str(text.as_str().context("the ConfigMap has no run configuration")?)?)
}
