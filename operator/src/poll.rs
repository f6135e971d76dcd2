//! Communication with coordinators: one task per job sends the desired state and polls the status,
//! so a slow coordinator delays no other job.
//!
//! ```text
//!  pass ── CoordinatorOrder ─▶ task ── PUT /v1/desired, GET /v1/status ─▶ coordinator
//!   ▲                           │
//!   └── ReconcileTrigger ───────┴─▶ last report
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use rljob_crds::RLJob;
use rljob_http::{ClientTls, ReadError};
use rljob_protocol::desired::Desired;
use rljob_protocol::error_line;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, peer_version};
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, EngineState};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::decide::{Silence, UNRESPONSIVE_AFTER};
use crate::leader::Term;
use crate::pods::HUNG_SECONDS;

/// Time between two requests to a coordinator.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time between passes that only progress triggers. The status has progress at most once a minute.
const PROGRESS_PERIOD: Duration = Duration::from_secs(60);
/// Largest status in bytes.
const MAX_STATUS: usize = 4 << 20;
/// Largest error response in bytes.
const MAX_ERROR: usize = 16 << 10;
/// Capacity of the trigger queue. A trigger that does not fit is sent again after a second.
const TRIGGERS: usize = 1024;

/// Message about a coordinator without TLS.
pub const PLAIN_COORDINATOR: &str = "the coordinator does not prove its identity: it runs an older \
    release; suspend and resume the job to run all of its pods with this release";

/// Address and desired state of a coordinator.
#[derive(Clone, PartialEq)]
pub struct CoordinatorOrder {
    /// UID of the coordinator pod.
    pub identity: String,
    /// Base URL.
    pub url: String,
    /// Restarts of the coordinator's container, as its kubelet reports them.
    pub restarts: u32,
    /// The operator's token for this job.
    pub token: String,
    /// The operator's certificate and key for this job, as PEM.
    pub certificate: Arc<str>,
    /// Name in the coordinator's certificate.
    pub server_name: String,
    pub desired: Desired,
}

impl fmt::Debug for CoordinatorOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, url, restarts, token: _, certificate: _, server_name, desired } = self;
        f.debug_struct("CoordinatorOrder")
            .field("identity", identity)
            .field("url", url)
            .field("restarts", restarts)
            .field("server_name", server_name)
            .field("desired", desired)
            .finish_non_exhaustive()
    }
}

/// The last report of a coordinator. Its status is `None` after a first request that failed.
#[derive(Clone)]
struct Report {
    identity: String,
    status: Option<CoordinatorStatus>,
    /// Set while the coordinator cannot serve a request, or this operator cannot read its status.
    unsupported: Option<String>,
    /// Set since the first request without an answer.
    silence: Option<Unanswered>,
    /// Restarts of the container at the last answer, or at the first request.
    restarts: u32,
}

/// Requests without an answer.
#[derive(Clone)]
struct Unanswered {
    since: Timestamp,
    error: String,
}

impl Report {
    fn of_answer(order: &CoordinatorOrder, status: CoordinatorStatus) -> Self {
        Self {
            identity: order.identity.clone(),
            status: Some(status),
            unsupported: None,
            silence: None,
            restarts: order.restarts,
        }
    }

    /// The report after a failed exchange. A rejected request is an answer.
    fn without_answer(
        order: &CoordinatorOrder,
        known: Option<&Self>,
        error: &ExchangeError,
        now: Timestamp,
    ) -> Self {
        let known = known.filter(|known| known.identity == order.identity);
        let (unsupported, silence) = match error {
            ExchangeError::Unsupported(message) => (Some(message.clone()), None),
            ExchangeError::Unanswered(error) => {
                let since = known.and_then(|known| Some(known.silence.as_ref()?.since));
                let (since, error) = (since.unwrap_or(now), error.clone());
                (None, Some(Unanswered { since, error }))
            }
        };
        Self {
            identity: order.identity.clone(),
            status: known.and_then(|known| known.status.clone()),
            unsupported: unsupported.or_else(|| known?.unsupported.clone()),
            silence,
            restarts: known.map_or(order.restarts, |known| known.restarts),
        }
    }

    fn health(&self, now: Timestamp) -> Health {
        let silence = self.silence.as_ref();
        Health {
            identity: self.identity.clone(),
            unsupported: self.unsupported.clone(),
            is_unresponsive: silence
                .is_some_and(|silence| now.duration_since(silence.since) >= UNRESPONSIVE_AFTER),
        }
    }
}

/// The parts of a report whose change triggers a pass, with or without an answer.
#[derive(PartialEq)]
struct Health {
    identity: String,
    unsupported: Option<String>,
    is_unresponsive: bool,
}

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error("{0}")]
    Unanswered(String),
    #[error("{0}")]
    Unsupported(String),
}

impl From<ReadError> for ExchangeError {
    fn from(error: ReadError) -> Self {
        Self::Unanswered(error_line(&error))
    }
}

impl From<reqwest::Error> for ExchangeError {
    fn from(error: reqwest::Error) -> Self {
        if rljob_http::is_plain_server(&error) {
            return Self::Unsupported(PLAIN_COORDINATOR.to_owned());
        }
        Self::Unanswered(error_line(&error))
    }
}

/// The HTTP client of a job: with its certificate, it reaches only the job's coordinator.
#[derive(Default)]
struct Link(Option<(Arc<str>, reqwest::Client)>);

impl Link {
    fn client(&mut self, order: &CoordinatorOrder) -> Result<reqwest::Client, ExchangeError> {
        if let Some((certificate, client)) = &self.0
            && *certificate == order.certificate
        {
            return Ok(client.clone());
        }
        let tls = ClientTls::of_pem(&order.certificate, &order.server_name)
            .map_err(|error| ExchangeError::Unanswered(error_line(&error)))?;
        // No idle connections: each has 20 KiB of buffers, a fifth of the memory per running job.
        let builder = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(0)
            .default_headers(protocol_headers());
        let client = tls.client(builder).build()?;
        self.0 = Some((Arc::clone(&order.certificate), client.clone()));
        Ok(client)
    }
}

/// Headers of every request to a coordinator.
pub fn protocol_headers() -> HeaderMap {
    HeaderMap::from_iter([(
        HeaderName::from_static(PROTOCOL_HEADER),
        HeaderValue::from(PROTOCOL_VERSION),
    )])
}

struct Poller {
    order: watch::Sender<CoordinatorOrder>,
    latest: Arc<Mutex<Option<Report>>>,
    _task: AbortOnDropHandle<()>,
}

/// The tasks, by the job's UID.
pub struct Pollers {
    term: Term,
    tasks: Mutex<HashMap<String, Poller>>,
    trigger: mpsc::Sender<ObjectRef<RLJob>>,
}

impl Pollers {
    /// Creates an empty set of tasks, and the stream of jobs that they trigger. The tasks send
    /// requests during the term only.
    pub fn new(term: Term) -> (Self, mpsc::Receiver<ObjectRef<RLJob>>) {
        let (trigger, triggers) = mpsc::channel(TRIGGERS);
        (Self { term, tasks: Mutex::default(), trigger }, triggers)
    }

    /// Sends an order to the job's coordinator until another one replaces it.
    pub fn send(&self, uid: &str, job: ObjectRef<RLJob>, order: CoordinatorOrder) {
        let mut tasks = self.tasks.lock();
        if let Some(poller) = tasks.get(uid) {
            poller.order.send_if_modified(|current| {
                let changed = *current != order;
                *current = order;
                changed
            });
            return;
        }
        let (sender, receiver) = watch::channel(order);
        let latest = Arc::new(Mutex::new(None));
        let (term, trigger) = (self.term.clone(), self.trigger.clone());
        let task = poll(term, receiver, latest.clone(), trigger, job);
        tasks.insert(
            uid.to_owned(),
            Poller { order: sender, latest, _task: AbortOnDropHandle::new(tokio::spawn(task)) },
        );
    }

    /// Ends the job's task.
    pub fn forget(&self, uid: &str) {
        self.tasks.lock().remove(uid);
    }

    /// Ends the tasks of deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.tasks.lock().retain(|uid, _| exists(uid));
    }

    /// The last status of every coordinator.
    pub fn reports(&self) -> Vec<CoordinatorStatus> {
        self.tasks
            .lock()
            .values()
            .filter_map(|poller| poller.latest.lock().as_ref()?.status.clone())
            .collect()
    }

    /// The last status of the coordinator with this pod UID.
    pub fn report(&self, uid: &str, identity: &str) -> Option<CoordinatorStatus> {
        let tasks = self.tasks.lock();
        let report = tasks.get(uid)?.latest.lock().clone();
        report.filter(|report| report.identity == identity)?.status
    }

    /// Why the coordinator with this pod UID and this operator do not work together.
    pub fn unsupported(&self, uid: &str, identity: &str) -> Option<String> {
        let tasks = self.tasks.lock();
        let report = tasks.get(uid)?.latest.lock().clone();
        report.filter(|report| report.identity == identity)?.unsupported
    }

    /// The silence of the coordinator with this pod UID, whose container has restarted this often.
    pub fn silence(&self, uid: &str, identity: &str, restarts: u32) -> Option<Silence> {
        let tasks = self.tasks.lock();
        let report = tasks.get(uid)?.latest.lock().clone();
        let report = report.filter(|report| report.identity == identity)?;
        let Unanswered { since, error } = report.silence?;
        Some(Silence { since, error, restarts: restarts.saturating_sub(report.restarts) })
    }

    /// Whether the coordinator with this pod UID has answered a request or failed to.
    pub fn was_asked(&self, uid: &str, identity: &str) -> bool {
        let tasks = self.tasks.lock();
        tasks.get(uid).is_some_and(|poller| {
            poller.latest.lock().as_ref().is_some_and(|report| report.identity == identity)
        })
    }
}

async fn poll(
    term: Term,
    mut orders: watch::Receiver<CoordinatorOrder>,
    latest: Arc<Mutex<Option<Report>>>,
    mut trigger: mpsc::Sender<ObjectRef<RLJob>>,
    job: ObjectRef<RLJob>,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut link, mut sent) = (Link::default(), Sent::default());
    let mut triggered: Option<(String, ReconcileTrigger, Instant)> = None;
    let mut known_health: Option<Health> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = orders.changed() => if changed.is_err() { return },
        }
        let order = orders.borrow_and_update().clone();
        if !term.is_active() {
            // The context of the term is dropped, and this task with it.
            continue;
        }
        let exchanged = tokio::select! {
            biased;
            () = term.over() => continue,
            exchanged = exchange(&mut link, &order, &mut sent) => exchanged,
        };
        let status = match exchanged {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(%job, %error, "the coordinator did not answer");
                // A coordinator that restarts in its pod has lost the desired state.
                sent = Sent::default();
                let known = latest.lock().clone();
                let report =
                    Report::without_answer(&order, known.as_ref(), &error, Timestamp::now());
                let health = Some(report.health(Timestamp::now()));
                *latest.lock() = Some(report);
                if known_health != health && trigger.try_send(job.clone()).is_ok() {
                    (known_health, triggered) = (health, None);
                }
                continue;
            }
        };
        let last_weighted = triggered.as_ref().map(|(_, last, _)| &last.weighted);
        let trigger_state = ReconcileTrigger::of(&status, last_weighted);
        let report = Report::of_answer(&order, status);
        let health = Some(report.health(Timestamp::now()));
        *latest.lock() = Some(report);
        if known_health != health {
            (known_health, triggered) = (health, None);
        }
        let due = triggered.as_ref().is_none_or(|(identity, old, at)| {
            *identity != order.identity
                || old.state != trigger_state.state
                || old.weighted != trigger_state.weighted
                || (old.progress != trigger_state.progress && at.elapsed() >= PROGRESS_PERIOD)
        });
        if due && trigger.try_send(job.clone()).is_ok() {
            triggered = Some((order.identity, trigger_state, Instant::now()));
        }
    }
}

/// The last order that a coordinator accepted.
#[derive(Default)]
struct Sent {
    order: Option<CoordinatorOrder>,
    /// Protocol version that the coordinator announced; 0 before its first response.
    peer: u32,
}

/// Sends the desired state if the coordinator lacks it, then gets its status.
async fn exchange(
    link: &mut Link,
    order: &CoordinatorOrder,
    sent: &mut Sent,
) -> Result<CoordinatorStatus, ExchangeError> {
    let http = link.client(order)?;
    if sent.order.as_ref() != Some(order) {
        let request = http
            .put(format!("{}/v1/desired", order.url))
            .bearer_auth(&order.token)
            .json(&order.desired.clone().for_peer(sent.peer));
        let response = request.send().await?;
        let peer = announced(&response);
        // A coordinator under a higher epoch rejects the order. Its status has that epoch, so the
        // next assigned epoch is higher.
        if response.status() != StatusCode::CONFLICT {
            served("PUT /v1/desired", response).await?;
            // Sent again if the coordinator understands more than was assumed.
            let is_whole = peer == sent.peer;
            *sent = Sent { order: is_whole.then(|| order.clone()), peer };
        }
    }
    let request = http.get(format!("{}/v1/status", order.url)).bearer_auth(&order.token);
    let response = served("GET /v1/status", request.send().await?).await?;
    let version = announced(&response);
    let status: CoordinatorStatus = serde_json::from_slice(
        &rljob_http::read(response, MAX_STATUS).await?,
    )
    .map_err(|error| incompatible(version, &format!("its status is unreadable: {error}")))?;
    status.check().map_err(|problem| incompatible(version, &problem))?;
    // A restarted container of the same pod has lost the desired state.
    if status.epoch != Some(order.desired.epoch)
        || status.generation != Some(order.desired.generation)
    {
        sent.order = None;
    }
    Ok(status)
}

fn announced(response: &Response) -> u32 {
    peer_version(response.headers().get(PROTOCOL_HEADER).map(HeaderValue::as_bytes))
}

fn incompatible(version: u32, what: &str) -> ExchangeError {
    ExchangeError::Unsupported(format!(
        "the coordinator speaks protocol version {version} and this operator version \
         {PROTOCOL_VERSION}: {what}; run the coordinator from an image of the operator's release"
    ))
}

/// Distinguishes requests that a coordinator of another release cannot serve from failures that
/// pass.
async fn served(request: &str, response: Response) -> Result<Response, ExchangeError> {
    let status = response.status();
    let is_unsupported = matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::UPGRADE_REQUIRED
    );
    if !is_unsupported {
        return Ok(response.error_for_status()?);
    }
    let version = announced(&response);
    let body = String::from_utf8_lossy(&rljob_http::read(response, MAX_ERROR).await?).into_owned();
    let message = serde_json::from_str::<serde_json::Value>(&body)
        .ok()
        .and_then(|body| Some(body.get("error")?.as_str()?.to_owned()))
        .unwrap_or(body);
    Err(incompatible(version, &format!("it answers {request} with {status}: {message}")))
}

/// The parts of a status whose change triggers a pass.
#[derive(PartialEq)]
struct ReconcileTrigger {
    state: String,
    /// Engines that hold weights of the run, or held them before the update in progress.
    weighted: BTreeSet<String>,
    progress: (u32, Option<rljob_protocol::version::Version>),
}

impl ReconcileTrigger {
    fn of(status: &CoordinatorStatus, last_weighted: Option<&BTreeSet<String>>) -> Self {
        let synced = status.engines.iter().any(|engine| engine.state == EngineCondition::Ready);
        let in_update = |engine: &EngineState| {
            engine.state == EngineCondition::Syncing
                && last_weighted.is_some_and(|last| last.contains(&engine.name))
        };
        let weighted = status
            .engines
            .iter()
            .filter(|engine| engine.version.is_some() || in_update(engine))
            .map(|engine| engine.name.clone())
            .collect();
        let hung = status
            .engines
            .iter()
            .filter(|engine| engine.silent_seconds.is_some_and(|seconds| seconds >= HUNG_SECONDS))
            .count();
        let state = format!(
            "{:?} {:?} {:?} {} {} {:?} {synced} {hung} {} {:?} {}",
            status.epoch,
            status.generation,
            status.phase,
            status.attempt,
            status.restarts,
            status.last_failure,
            status.checkpoint.is_some(),
            status.unsupported,
            status.reward_outage.is_some()
        );
        Self { state, weighted, progress: (status.step, status.checkpoint) }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::{get, put};
    use rljob_http::{Limits, Role, Routes, ServerTls};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::decide::test_support::{facts, report};
    use crate::desired::tokens::{TokenKey, Tokens};

    /// A coordinator that answers with this code and this status body.
    async fn asked(desired: StatusCode, body: &'static str) -> String {
        asked_for(desired, async move || body.into_response()).await
    }

    async fn asked_for<F>(
        desired: StatusCode,
        status: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> String
    where
        F: Future<Output = axum::response::Response> + Send + 'static,
    {
        let routes = Router::new()
            .route("/v1/desired", put(async move || (desired, "unknown field `later`")))
            .route("/v1/status", get(status));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), "uid");
        let clients = [Role::Operator.server_name("uid")];
        let pem = tokens.certificates.of(Role::Coordinator);
        let tls = ServerTls::of_pem(pem, &clients).unwrap();
        let routes = Routes::new(Router::new(), routes, &tls);
        let stop = CancellationToken::new();
        let server =
            tokio::spawn(rljob_http::serve(listener, routes, Limits::default(), stop.clone()));
        let job = crate::validate::test_support::validated();
        let order = CoordinatorOrder {
            identity: "pod".to_owned(),
            url,
            restarts: 0,
            token: "secret".to_owned(),
            certificate: tokens.certificates.of(Role::Operator).clone(),
            server_name: Role::Coordinator.server_name("uid"),
            desired: crate::decide::desired_for_coordinator(&job, &facts()).unwrap(),
        };
        let result = exchange(&mut Link::default(), &order, &mut Sent::default()).await;
        server.abort();
        match result {
            Ok(status) => format!("{:?}", status.phase),
            Err(ExchangeError::Unsupported(message)) => message,
            Err(ExchangeError::Unanswered(error)) => error.replace(&order.url, ""),
        }
    }

    #[tokio::test]
    async fn requests_that_another_release_cannot_serve_are_distinguished_from_failures() {
        let status: &'static str = serde_json::to_string(&report()).unwrap().leak();
        assert_eq!(asked(StatusCode::OK, status).await, "Running");
        assert_eq!(asked(StatusCode::CONFLICT, status).await, "Running");
        assert_eq!(
            asked(StatusCode::UNPROCESSABLE_ENTITY, status).await,
            "the coordinator speaks protocol version 1 and this operator version 2: it answers PUT \
             /v1/desired with 422 Unprocessable Entity: unknown field `later`; run the coordinator \
             from an image of the operator's release"
        );
        assert_eq!(
            asked(StatusCode::OK, r#"{"phase": "Paused"}"#).await,
            "the coordinator speaks protocol version 1 and this operator version 2: its status is \
             unreadable: unknown variant `Paused`, expected one of `Starting`, `Running`, \
             `Restarting`, `Draining`, `Drained`, `Finished`, `Failed` at line 1 column 18; run \
             the coordinator from an image of the operator's release"
        );
        for passing in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            let class = if passing.is_server_error() { "server" } else { "client" };
            let expected = format!("HTTP status {class} error ({passing}) for url (/v1/desired)");
            assert_eq!(asked(passing, status).await, expected);
        }
    }

    #[tokio::test]
    async fn a_status_is_read_within_limits() {
        let endless = async || {
            let chunks =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65536]));
            Body::from_stream(chunks).into_response()
        };
        let expected = format!("the response has more than {MAX_STATUS} bytes");
        assert_eq!(asked_for(StatusCode::OK, endless).await, expected);
        let silent = async || {
            Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
                .into_response()
        };
        let answer = asked_for(StatusCode::OK, silent).await;
        assert!(answer.ends_with("operation timed out"), "{answer}");
        let huge = CoordinatorStatus { epoch: Some(u64::MAX), ..report() };
        let huge: &'static str = serde_json::to_string(&huge).unwrap().leak();
        let answer = asked(StatusCode::OK, huge).await;
        assert!(answer.contains("epoch in its status exceeds 1099511627776"), "{answer}");
    }

    #[test]
    fn a_silence_lasts_from_the_first_failure_to_the_next_answer() {
        let at = crate::decide::test_support::at;
        let job = crate::validate::test_support::validated();
        let order = |restarts| CoordinatorOrder {
            identity: "pod".to_owned(),
            url: String::new(),
            restarts,
            token: String::new(),
            certificate: "".into(),
            server_name: String::new(),
            desired: crate::decide::desired_for_coordinator(&job, &facts()).unwrap(),
        };
        let lost = || ExchangeError::Unanswered("connection refused".to_owned());
        let answered = Report::of_answer(&order(2), report());
        let silent = Report::without_answer(&order(3), Some(&answered), &lost(), at(0));
        let longer = Report::without_answer(&order(5), Some(&silent), &lost(), at(30));
        let silence = longer.silence.clone().unwrap();
        assert_eq!((silence.since, longer.restarts), (at(0), 2));
        assert_eq!(longer.status, Some(report()), "the last status is kept");
        let is_unresponsive = |second| longer.health(at(second)).is_unresponsive;
        assert!(!is_unresponsive(29) && is_unresponsive(30));
        let other = CoordinatorOrder { identity: "other".to_owned(), ..order(0) };
        let other = Report::without_answer(&other, Some(&longer), &lost(), at(40));
        assert_eq!((other.silence.unwrap().since, other.status), (at(40), None));
        let rejected = ExchangeError::Unsupported("version 9".to_owned());
        let rejected = Report::without_answer(&order(5), Some(&longer), &rejected, at(50));
        assert!(rejected.silence.is_none(), "a rejection is an answer");
    }
}
