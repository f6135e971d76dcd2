//! Simulated coordinators of all jobs: one HTTPS server that distinguishes jobs by their tokens.
//! Its certificate is that of the pod with the requested address.
//! Runs make steps until `/end` is called.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use rljob_crds::names::COORDINATOR_PORT;
use rljob_http::{Role, ServerTls};
use rljob_protocol::desired::Desired;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, Phase};
use rljob_protocol::version::Version;
use rljob_tests::TlsListener;
use serde_json::json;
use tokio::runtime::Handle;

/// Port of the request that ends all runs.
const END_PORT: u16 = COORDINATOR_PORT - 1;
/// Current and total steps of each run.
const STEPS: (u32, u32) = (2, 3);

#[derive(Clone, Default)]
struct Runs {
    desired: Arc<Mutex<HashMap<String, Desired>>>,
    ended: Arc<Mutex<bool>>,
}

/// Serves until the process is killed.
pub async fn serve() {
    let runs = Runs::default();
    let end = post(|State(runs): State<Runs>| async move { *runs.ended.lock() = true });
    let control = Router::new().route("/end", end).with_state(runs.clone());
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", END_PORT)).await.unwrap();
    tokio::spawn(axum::serve(listener, control).into_future());
    let routes = Router::new().route("/v1/desired", put(take)).route("/v1/status", get(status));
    let listener = tokio::net::TcpListener::bind(("0.0.0.0", COORDINATOR_PORT)).await.unwrap();
    let client = Client::try_default().await.unwrap();
    let known = Mutex::new(HashMap::<IpAddr, ServerTls>::new());
    let certificate = move |address: IpAddr| {
        if let Some(tls) = known.lock().get(&address) {
            return Some(tls.clone());
        }
        let read = certificate(&client, address);
        let tls = tokio::task::block_in_place(|| Handle::current().block_on(read))?;
        known.lock().insert(address, tls.clone());
        Some(tls)
    };
    let routes = routes.with_state(runs);
    axum::serve(TlsListener::new(listener, certificate), routes).await.unwrap();
}

/// The certificate in the Secret that the pod with this address mounts.
async fn certificate(client: &Client, address: IpAddr) -> Option<ServerTls> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let at = ListParams::default().fields(&format!("status.podIP={address}"));
    let pod = pods.list(&at).await.ok()?.items.pop()?;
    let mut volumes = pod.spec?.volumes?.into_iter();
    let name = volumes.find_map(|volume| volume.secret?.secret_name)?;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let secret = secrets.get(&name).await.ok()?;
    let uid = &secret.metadata.owner_references.as_ref()?.first()?.uid;
    let pem = &secret.data.as_ref()?.get(Role::Coordinator.file())?.0;
    let operator = Role::Operator.server_name(uid);
    ServerTls::of_pem(std::str::from_utf8(pem).ok()?, &[operator]).ok()
}

fn token(headers: &HeaderMap) -> String {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

async fn take(State(runs): State<Runs>, headers: HeaderMap, Json(desired): Json<Desired>) {
    runs.desired.lock().insert(token(&headers), desired);
}

async fn status(
    State(runs): State<Runs>,
    headers: HeaderMap,
) -> Result<Json<CoordinatorStatus>, StatusCode> {
    let desired = runs
        .desired
        .lock()
        .get(&token(&headers))
        .cloned()
        .ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let ended = *runs.ended.lock();
    let step = if ended { STEPS.1 } else { STEPS.0 };
    let version = Version { step: STEPS.0, attempt: 0 };
    let engine = |name: String| {
        serde_json::from_value(
            json!({"name": name, "state": EngineCondition::Ready, "version": version}),
        )
        .unwrap()
    };
    Ok(Json(CoordinatorStatus {
        epoch: Some(desired.epoch),
        generation: Some(desired.generation),
        phase: if ended { Phase::Finished } else { Phase::Running },
        attempt: 0,
        restarts: 0,
        last_failure: None,
        step,
        total_steps: STEPS.1,
        metrics: None,
        evaluation: None,
        supervisors: vec![],
        evaluation_engines: vec![],
        reward_engines: vec![],
        teacher_engines: vec![],
        pending_evaluations: None,
        engines: desired
            .engines
            .into_iter()
            .map(|engine_endpoint| engine(engine_endpoint.name))
            .collect(),
        checkpoint: None,
        checkpoints: Vec::new(),
        unsupported: None,
        journal_failure: None,
        tracker_failure: None,
        memory: None,
        requests: None,
        verifiers: None,
        groups: Vec::new(),
        download: None,
        reward_outage: None,
        reward_failure: None,
        activity: None,
    }))
}
