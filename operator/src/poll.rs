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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use kube::runtime::reflector::ObjectRef;
use rljob_crds::RLJob;
use rljob_protocol::desired::Desired;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, EngineState};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::pods::HUNG_SECONDS;

/// Time between two requests to a coordinator.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time between passes that only progress triggers. The status has progress at most once a minute.
const PROGRESS_PERIOD: Duration = Duration::from_secs(60);
/// Capacity of the trigger queue. A trigger that does not fit is sent again after a second.
const TRIGGERS: usize = 1024;

/// Address and desired state of a coordinator.
#[derive(Clone, PartialEq)]
pub struct CoordinatorOrder {
    /// UID of the coordinator pod.
    pub identity: String,
    /// Base URL.
    pub url: String,
    /// The operator's token for this job.
    pub token: String,
    pub desired: Desired,
}

impl fmt::Debug for CoordinatorOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, url, token: _, desired } = self;
        f.debug_struct("CoordinatorOrder")
            .field("identity", identity)
            .field("url", url)
            .field("desired", desired)
            .finish_non_exhaustive()
    }
}

/// The last report of a coordinator. Its status is `None` after a first request that failed.
#[derive(Clone)]
struct Report {
    identity: String,
    status: Option<CoordinatorStatus>,
}

struct Poller {
    order: watch::Sender<CoordinatorOrder>,
    latest: Arc<Mutex<Option<Report>>>,
    _task: AbortOnDropHandle<()>,
}

/// The tasks, by the job's UID.
pub struct Pollers {
    http: reqwest::Client,
    tasks: Mutex<HashMap<String, Poller>>,
    trigger: mpsc::Sender<ObjectRef<RLJob>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded values are replaced whole, so a panic cannot leave one half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pollers {
    /// Creates an empty set of tasks, and the stream of jobs that they trigger.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new() -> reqwest::Result<(Self, mpsc::Receiver<ObjectRef<RLJob>>)> {
        let (trigger, triggers) = mpsc::channel(TRIGGERS);
        // No proxy: pods are reached directly. No idle connections: each has 20 KiB of buffers, a
        // fifth of the memory per running job.
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(0)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok((Self { http, tasks: Mutex::default(), trigger }, triggers))
    }

    /// Sends an order to the job's coordinator until another one replaces it.
    pub fn send(&self, uid: &str, job: ObjectRef<RLJob>, order: CoordinatorOrder) {
        let mut tasks = lock(&self.tasks);
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
        let task = poll(self.http.clone(), receiver, latest.clone(), self.trigger.clone(), job);
        tasks.insert(
            uid.to_owned(),
            Poller { order: sender, latest, _task: AbortOnDropHandle::new(tokio::spawn(task)) },
        );
    }

    /// Ends the job's task.
    pub fn forget(&self, uid: &str) {
        lock(&self.tasks).remove(uid);
    }

    /// Ends the tasks of deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.tasks).retain(|uid, _| exists(uid));
    }

    /// The last status of every coordinator.
    pub fn reports(&self) -> Vec<CoordinatorStatus> {
        lock(&self.tasks)
            .values()
            .filter_map(|poller| lock(&poller.latest).as_ref()?.status.clone())
            .collect()
    }

    /// The last status of the coordinator with this pod UID.
    pub fn report(&self, uid: &str, identity: &str) -> Option<CoordinatorStatus> {
        let tasks = lock(&self.tasks);
        let report = lock(&tasks.get(uid)?.latest).clone();
        report.filter(|report| report.identity == identity)?.status
    }

    /// Whether the coordinator with this pod UID has answered a request or failed to.
    pub fn was_asked(&self, uid: &str, identity: &str) -> bool {
        let tasks = lock(&self.tasks);
        tasks.get(uid).is_some_and(|poller| {
            lock(&poller.latest).as_ref().is_some_and(|report| report.identity == identity)
        })
    }
}

async fn poll(
    http: reqwest::Client,
    mut orders: watch::Receiver<CoordinatorOrder>,
    latest: Arc<Mutex<Option<Report>>>,
    mut trigger: mpsc::Sender<ObjectRef<RLJob>>,
    job: ObjectRef<RLJob>,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent: Option<CoordinatorOrder> = None;
    let mut triggered: Option<(String, ReconcileTrigger, Instant)> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = orders.changed() => if changed.is_err() { return },
        }
        let order = orders.borrow_and_update().clone();
        let status = match exchange(&http, &order, &mut sent).await {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(%job, %error, "the coordinator did not answer");
                // A coordinator that restarts in its pod has lost the desired state.
                sent = None;
                let is_first =
                    lock(&latest).as_ref().is_none_or(|report| report.identity != order.identity);
                if is_first && trigger.try_send(job.clone()).is_ok() {
                    *lock(&latest) = Some(Report { identity: order.identity, status: None });
                }
                continue;
            }
        };
        let last_weighted = triggered.as_ref().map(|(_, last, _)| &last.weighted);
        let trigger_state = ReconcileTrigger::of(&status, last_weighted);
        *lock(&latest) = Some(Report { identity: order.identity.clone(), status: Some(status) });
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

/// Sends the desired state if the coordinator lacks it, then gets its status.
async fn exchange(
    http: &reqwest::Client,
    order: &CoordinatorOrder,
    sent: &mut Option<CoordinatorOrder>,
) -> reqwest::Result<CoordinatorStatus> {
    if sent.as_ref() != Some(order) {
        let request = http
            .put(format!("{}/v1/desired", order.url))
            .bearer_auth(&order.token)
            .json(&order.desired);
        let response = request.send().await?;
        // A coordinator under a higher epoch rejects the order. Its status has that epoch, so the
        // next assigned epoch is higher.
        if response.status() != reqwest::StatusCode::CONFLICT {
            response.error_for_status()?;
            *sent = Some(order.clone());
        }
    }
    let request = http.get(format!("{}/v1/status", order.url)).bearer_auth(&order.token);
    let status: CoordinatorStatus = request.send().await?.error_for_status()?.json().await?;
    // A restarted container of the same pod has lost the desired state.
    if status.epoch != Some(order.desired.epoch)
        || status.generation != Some(order.desired.generation)
    {
        *sent = None;
    }
    Ok(status)
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
            "{:?} {:?} {:?} {} {} {:?} {synced} {hung} {}",
            status.epoch,
            status.generation,
            status.phase,
            status.attempt,
            status.restarts,
            status.last_failure,
            status.checkpoint.is_some()
        );
        Self { state, weighted, progress: (status.step, status.checkpoint) }
    }
}
