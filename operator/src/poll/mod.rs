//! Communication with coordinators: one task per job sends the desired state and polls the status,
//! so a slow coordinator delays no other job.
//!
//! ```text
//!  pass ── CoordinatorOrder ─▶ task ── PUT /v1/desired, GET /v1/status ─▶ coordinator
//!   ▲                           │
//!   └── ReconcileTrigger ───────┴─▶ last report
//! ```

mod exchange;
mod report;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use rljob_crds::RLJob;
use rljob_protocol::status::CoordinatorStatus;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

pub use exchange::{CoordinatorOrder, PLAIN_COORDINATOR, protocol_headers};
use exchange::{Link, Sent, exchange};
use report::{Health, ReconcileTrigger, Report, Unanswered};

use crate::decide::Silence;
use crate::leader::Term;

/// Time between two requests to a coordinator.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between passes that only progress triggers. The status has progress at most once a minute.
const PROGRESS_PERIOD: Duration = Duration::from_secs(60);
/// Capacity of the trigger queue. A trigger that does not fit is sent again after a second.
const TRIGGERS: usize = 1024;

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
