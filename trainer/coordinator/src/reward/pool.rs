//! Pool of the sessions of one program: on the reward runner of this pod or machine, or spread over
//! verifier pods. A call waits for a slot; the pod with the fewest calls of the program gets it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::reward::call::{CallError, LostPods, POD_TIMEOUT};
use crate::reward::connection::{Runner, Session};
use crate::reward::session::Start;
use crate::reward::verifier::VerifierError;
use crate::reward::verifier_pods::{Calls, Counted, VerifierPod};

/// Time after which pods that failed are looked at again.
const TICK: Duration = Duration::from_secs(1);

/// The sessions of a program.
#[derive(Debug)]
pub struct Pool {
    runner: Runner,
    /// Calls of the program at a time, on each runner.
    processes: u32,
    /// By UID of the pod; one without a pod.
    members: Mutex<BTreeMap<String, Member>>,
    freed: Notify,
    calls: Option<Arc<Calls>>,
}

/// Sessions on one runner.
#[derive(Debug, Default)]
struct Member {
    busy: u32,
    idle: Vec<Session>,
}

/// The right to a call on a runner.
#[derive(Debug)]
pub struct Slot<'a> {
    pool: &'a Pool,
    /// The pod of the runner; none for that of this pod or machine.
    pub pod: Option<Arc<VerifierPod>>,
    /// An idle session, which may have ended.
    pub idle: Option<Session>,
    _running: Option<Counted>,
}

impl Pool {
    pub fn new(runner: &Runner, processes: u32) -> Self {
        let calls = match runner {
            Runner::Pods(pods) => Some(pods.count_calls(processes)),
            Runner::Socket(_) | Runner::Program(_) => None,
        };
        let (members, freed) = (Mutex::default(), Notify::new());
        Self { runner: runner.clone(), processes, members, freed, calls }
    }

    /// Counts a call until the result is dropped.
    pub fn begin(&self) -> Option<Counted> {
        self.calls.as_ref().map(Calls::begin)
    }

    /// Waits for a slot; fails if no pod is usable for [`POD_TIMEOUT`].
    pub async fn acquire(&self) -> Result<Slot<'_>, VerifierError> {
        let mut pods = match &self.runner {
            Runner::Pods(pods) => Some(pods.subscribe()),
            Runner::Socket(_) | Runner::Program(_) => None,
        };
        let mut without_pods_since = None;
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let Some(pods) = &mut pods else {
                if let Some(slot) = self.take([None]) {
                    return Ok(slot);
                }
                freed.await;
                continue;
            };
            let usable: Vec<_> = pods.borrow_and_update().clone();
            let usable: Vec<_> = usable.into_iter().filter(|pod| pod.is_usable()).collect();
            if usable.is_empty() {
                let since = *without_pods_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= POD_TIMEOUT {
                    let cause = std::io::Error::other("no verifier pod is ready");
                    return Err(VerifierError::Runner(cause));
                }
            } else {
                without_pods_since = None;
                if let Some(slot) = self.take(usable.into_iter().map(Some)) {
                    return Ok(slot);
                }
            }
            tokio::select! {
                () = freed => {}
                _ = pods.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// A slot on the runner with the fewest calls, if it has one.
    fn take(
        &self,
        runners: impl IntoIterator<Item = Option<Arc<VerifierPod>>>,
    ) -> Option<Slot<'_>> {
        let mut members = self.members.lock();
        members.retain(|_, member| member.busy > 0 || !member.idle.is_empty());
        let busy = |members: &BTreeMap<String, Member>, key: &str| {
            members.get(key).map_or(0, |member| member.busy)
        };
        let pod = runners.into_iter().min_by_key(|pod| busy(&members, key(pod.as_ref())))?;
        let key = key(pod.as_ref());
        if busy(&members, key) >= self.processes {
            return None;
        }
        let member = members.entry(key.to_owned()).or_default();
        member.busy = member.busy.saturating_add(1);
        let (idle, running) = (member.idle.pop(), self.calls.as_ref().map(Calls::run));
        Some(Slot { pool: self, pod, idle, _running: running })
    }

    fn change(&self, pod: Option<&Arc<VerifierPod>>, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.lock().get_mut(key(pod)) {
            change(member);
        }
    }
}

fn key(pod: Option<&Arc<VerifierPod>>) -> &str {
    pod.map_or("", |pod| pod.uid())
}

impl Slot<'_> {
    /// Starts the program in a new session.
    pub async fn open(&self, program: &Start) -> Result<Session, CallError> {
        let opened = Session::open(&self.pool.runner, self.pod.as_deref(), program);
        opened.await.map_err(CallError::NotOpened)
    }

    /// Awaits a call of this slot until the timeout, or until its pod is removed. Without pods, no
    /// other runner can repeat it.
    pub async fn limit<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let timed = async {
            let timed = tokio::time::timeout(timeout, call).await;
            timed.unwrap_or_else(|_| Err(CallError::Failed(VerifierError::Timeout(timeout))))
        };
        let Some(pod) = &self.pod else {
            return timed.await.map_err(|error| match error {
                CallError::NotOpened(error) | CallError::Lost(error) => CallError::Failed(error),
                error @ (CallError::Removed | CallError::Failed(_)) => error,
            });
        };
        tokio::select! {
            result = timed => result,
            () = pod.removed.cancelled() => Err(CallError::Removed),
        }
    }

    /// The error that ends a call of this slot; none if another pod repeats the call.
    pub fn failed(&self, error: CallError, so_far: &mut LostPods) -> Option<VerifierError> {
        if !matches!(error, CallError::Failed(_)) {
            self.lost();
        }
        so_far.add(error)
    }

    /// Keeps a session for the next call.
    pub fn keep(&self, session: Session) {
        let is_removed = self.pod.as_ref().is_some_and(|pod| pod.removed.is_cancelled());
        self.pool.change(self.pod.as_ref(), |member| {
            if !is_removed {
                member.idle.push(session);
            }
        });
    }

    /// Avoids the pod of this slot for a while, and closes its idle sessions.
    fn lost(&self) {
        if let Some(pod) = &self.pod {
            pod.failed();
            self.pool.change(Some(pod), |member| member.idle.clear());
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.pool.change(self.pod.as_ref(), |member| member.busy = member.busy.saturating_sub(1));
        self.pool.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::verifier_pods::VerifierPods;
    use rljob_protocol::desired::VerifierEndpoint;

    async fn waits(pool: &Pool) -> bool {
        tokio::time::timeout(Duration::from_millis(100), pool.acquire()).await.is_err()
    }

    #[tokio::test]
    async fn calls_wait_for_a_slot_and_for_a_pod() {
        let pool = Pool::new(&Runner::Program("runner".into()), 1);
        let slot = pool.acquire().await.unwrap();
        assert!(waits(&pool).await);
        drop(slot);
        assert!(!waits(&pool).await);
        let authority = rljob_http::Authority::new("uid", [1; 32]).unwrap();
        let pem = authority.issue(rljob_http::Role::Coordinator, [2; 32]).unwrap();
        let pods = VerifierPods::new(rljob_http::ClientTls::of_pem(&pem, "a.rljob").unwrap());
        let pool = Pool::new(&Runner::Pods(Arc::clone(&pods)), 1);
        assert!(waits(&pool).await);
        let pod = |name: &str| VerifierEndpoint {
            name: name.to_owned(),
            uid: name.to_owned(),
            address: ([127, 0, 0, 1], 1).into(),
        };
        pods.set(&[pod("a"), pod("b")]);
        let slots = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
        let names = slots.each_ref().map(|slot| slot.pod.as_ref().unwrap().name().to_owned());
        assert_eq!(names, ["a", "b"]);
        assert!(waits(&pool).await);
        slots[0].lost();
        drop(slots);
        let slot = pool.acquire().await.unwrap();
        assert_eq!(slot.pod.as_ref().unwrap().name(), "b", "the other one was lost");
    }
}
