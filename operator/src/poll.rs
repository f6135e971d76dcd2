//! Talks to coordinators, outside of reconcile: one task a job tells it what is wanted and asks how
//! it is, so that a slow coordinator delays nobody else's job.
//!
//! ```text
//!  reconcile ── order (newest wins) ─▶ task ── PUT /v1/desired, GET /v1/status ─▶ coordinator
//!      ▲                                │
//!      └── trigger, when it matters ────┴─▶ latest report
//! ```

use std::collections::{BTreeSet, HashMap};
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

/// Time between two questions to a coordinator.
const PERIOD: Duration = Duration::from_secs(1);
/// Longest time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A change of nothing but progress triggers a pass this often: what status writes at most once a
/// minute.
const PROGRESS_PERIOD: Duration = Duration::from_secs(60);
/// Triggers that wait for the controller; one that finds no room is given again a second later.
const TRIGGERS: usize = 1024;

/// What a coordinator is to be told, and where it is.
#[derive(Clone, PartialEq)]
pub struct Order {
    /// UID of the coordinator pod.
    pub identity: String,
    /// Base URL.
    pub url: String,
    /// The operator's token for this job.
    pub token: String,
    /// The level.
    pub desired: Desired,
}

/// What a coordinator said last; none if it has been asked and has not answered yet.
#[derive(Clone)]
struct Report {
    identity: String,
    status: Option<CoordinatorStatus>,
}

struct Poller {
    order: watch::Sender<Order>,
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
    // What is guarded is replaced whole; a panic elsewhere cannot leave it half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pollers {
    /// No tasks yet, and the stream of jobs whose coordinator has news.
    ///
    /// # Errors
    /// If the HTTP client cannot be made.
    pub fn new() -> reqwest::Result<(Self, mpsc::Receiver<ObjectRef<RLJob>>)> {
        let (trigger, triggers) = mpsc::channel(TRIGGERS);
        // Pods are reached directly, whatever proxy the environment names. A connection that is
        // kept holds 20 KiB of buffers: a fifth of all that a running job would take.
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(0)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok((Self { http, tasks: Mutex::default(), trigger }, triggers))
    }

    /// Keeps telling the job's coordinator this, from now on.
    pub fn order(&self, uid: &str, job: ObjectRef<RLJob>, order: Order) {
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

    /// Says nothing more to the job's coordinator.
    pub fn forget(&self, uid: &str) {
        lock(&self.tasks).remove(uid);
    }

    /// Ends the tasks of jobs that are gone: nothing else tells of a deletion.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.tasks).retain(|uid, _| exists(uid));
    }

    /// What every coordinator said last.
    pub fn reports(&self) -> Vec<CoordinatorStatus> {
        lock(&self.tasks)
            .values()
            .filter_map(|poller| lock(&poller.latest).as_ref()?.status.clone())
            .collect()
    }

    /// What the coordinator of that pod UID said last.
    pub fn report(&self, uid: &str, identity: &str) -> Option<CoordinatorStatus> {
        let tasks = lock(&self.tasks);
        let report = lock(&tasks.get(uid)?.latest).clone();
        report.filter(|report| report.identity == identity)?.status
    }

    /// Whether the coordinator of that pod UID has been asked, and has answered or failed to.
    pub fn has_asked(&self, uid: &str, identity: &str) -> bool {
        let tasks = lock(&self.tasks);
        tasks.get(uid).is_some_and(|poller| {
            lock(&poller.latest).as_ref().is_some_and(|report| report.identity == identity)
        })
    }
}

async fn poll(
    http: reqwest::Client,
    mut orders: watch::Receiver<Order>,
    latest: Arc<Mutex<Option<Report>>>,
    mut trigger: mpsc::Sender<ObjectRef<RLJob>>,
    job: ObjectRef<RLJob>,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: Option<Order> = None;
    let mut triggered: Option<(String, Essence, Instant)> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = orders.changed() => if changed.is_err() { return },
        }
        let order = orders.borrow_and_update().clone();
        let status = match ask(&http, &order, &mut told).await {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(%job, %error, "the coordinator did not answer");
                // One that was restarted in its pod knows nothing until it is told.
                told = None;
                let is_first =
                    lock(&latest).as_ref().is_none_or(|report| report.identity != order.identity);
                if is_first && trigger.try_send(job.clone()).is_ok() {
                    *lock(&latest) = Some(Report { identity: order.identity, status: None });
                }
                continue;
            }
        };
        let essence =
            Essence::of(&status, triggered.as_ref().map(|(_, essence, _)| &essence.weighted));
        *lock(&latest) = Some(Report { identity: order.identity.clone(), status: Some(status) });
        let due = triggered.as_ref().is_none_or(|(identity, old, at)| {
            *identity != order.identity
                || old.state != essence.state
                || old.weighted != essence.weighted
                || (old.progress != essence.progress && at.elapsed() >= PROGRESS_PERIOD)
        });
        if due && trigger.try_send(job.clone()).is_ok() {
            triggered = Some((order.identity, essence, Instant::now()));
        }
    }
}

/// Tells what is wanted if the coordinator does not know it, then asks for its status.
async fn ask(
    http: &reqwest::Client,
    order: &Order,
    told: &mut Option<Order>,
) -> reqwest::Result<CoordinatorStatus> {
    if told.as_ref() != Some(order) {
        let request = http
            .put(format!("{}/v1/desired", order.url))
            .bearer_auth(&order.token)
            .json(&order.desired);
        let answer = request.send().await?;
        // One that acts under a higher epoch refuses; its status says which, so that the next one
        // is higher still.
        if answer.status() != reqwest::StatusCode::CONFLICT {
            answer.error_for_status()?;
            *told = Some(order.clone());
        }
    }
    let request = http.get(format!("{}/v1/status", order.url)).bearer_auth(&order.token);
    let status: CoordinatorStatus = request.send().await?.error_for_status()?.json().await?;
    // A restarted container of the same pod has forgotten what it was told.
    if status.epoch != Some(order.desired.epoch)
        || status.generation != Some(order.desired.generation)
    {
        *told = None;
    }
    Ok(status)
}

/// What of a status is worth a pass of the controller.
#[derive(PartialEq)]
struct Essence {
    state: String,
    /// Engines that hold weights of the run, or did before the update that they are in.
    weighted: BTreeSet<String>,
    progress: (u32, Option<rljob_protocol::version::Version>),
}

impl Essence {
    fn of(status: &CoordinatorStatus, before: Option<&BTreeSet<String>>) -> Self {
        let synced = status.engines.iter().any(|engine| engine.state == EngineCondition::Ready);
        let in_update = |engine: &EngineState| {
            engine.state == EngineCondition::Syncing
                && before.is_some_and(|before| before.contains(&engine.name))
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
