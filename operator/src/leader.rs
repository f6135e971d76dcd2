//! Leader election by a Lease, as in Kubernetes controllers: one of several operators writes.
//!
//! ```text
//!          not held, or not renewed by its holder for 15 s
//!  standby ───────────────────────────────────────────────▶ leader
//!          ◀───────────────────────────────────────────────
//!          not renewed for 10 s, or held by another operator
//! ```
//!
//! Every write of the Lease is a compare-and-set, so one candidate wins. Clocks of other operators
//! are not read: a holder is late if the Lease has not changed for its own duration since the
//! change was observed. A leader's term starts before its request, so it stops before another
//! operator starts.
//!
//! A Lease cannot stop a write in progress; writes name the UID and version of their object. No
//! task starts a write after the end of the [`Term`], so a process that was paused writes nothing
//! even before it learns of its successor. docs/decisions/0008 explains why no library is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::desired::meta::OPERATOR_NAME;
use crate::token_key;

/// Time without a renewal after which another operator takes the Lease.
const LEASE: Duration = Duration::from_secs(15);
/// Time without a renewal after which the leader stops.
const TERM: Duration = Duration::from_secs(10);
/// Time between renewals of a leader, and between checks of a standby.
const PERIOD: Duration = Duration::from_secs(2);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which this process may write.
#[derive(Clone, Debug)]
pub struct Term {
    start: Instant,
    /// Milliseconds from `start`.
    end: Arc<AtomicU64>,
}

impl Term {
    /// A term that has not started.
    pub fn inactive() -> Self {
        Self { start: Instant::now(), end: Arc::default() }
    }

    /// The term of an operator without leader election.
    pub fn endless() -> Self {
        Self { start: Instant::now(), end: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    pub fn is_active(&self) -> bool {
        self.is_active_at(Instant::now())
    }

    /// Completes at the end of the term, renewals included.
    pub async fn over(&self) {
        while let Some(left) = self.left() {
            tokio::time::sleep(left).await;
        }
    }

    fn left(&self) -> Option<Duration> {
        let end = Duration::from_millis(self.end.load(Ordering::Acquire));
        end.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero())
    }

    #[cfg(test)]
    pub fn ending_in(time: Duration) -> Self {
        let term = Self::inactive();
        term.renew(Instant::now(), time);
        term
    }

    fn is_active_at(&self, now: Instant) -> bool {
        (now.duration_since(self.start).as_millis() as u64) < self.end.load(Ordering::Acquire)
    }

    /// Sets the end to `length` after `at`.
    fn renew(&self, at: Instant, length: Duration) {
        let end = at.saturating_duration_since(self.start).saturating_add(length);
        self.end.store(end.as_millis() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.end.store(0, Ordering::Release);
    }
}

/// A candidate for leadership.
pub struct Elector {
    leases: Api<Lease>,
    identity: String,
    term: Term,
    /// The newest version of the Lease, and the time of its first observation.
    seen: Option<(String, Instant)>,
}

/// The next action on the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    Take,
    Wait,
}

impl Elector {
    /// Creates a candidate for the Lease in the client's namespace. It updates `term`.
    ///
    /// # Errors
    /// If no random identity can be generated.
    pub fn new(client: Client, term: Term) -> anyhow::Result<Self> {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| OPERATOR_NAME.to_owned());
        let mut tail = [0; 4];
        tail.copy_from_slice(
            &token_key::random(4).context("failed to generate a candidate identity")?,
        );
        Ok(Self {
            leases: Api::default_namespaced(client),
            identity: format!("{host}_{:08x}", u32::from_be_bytes(tail)),
            term,
            seen: None,
        })
    }

    /// Runs `lead` while the Lease is held, until `stop`. Drops `lead` when the Lease is lost, and
    /// waits for it on `stop`.
    pub async fn run<F: Future<Output = ()>>(
        mut self,
        stop: CancellationToken,
        lead: impl Fn() -> F,
    ) {
        while stop.run_until_cancelled(self.win()).await.is_some() {
            tracing::info!(identity = self.identity, "became leader");
            tokio::select! {
                () = lead() => {}
                () = self.keep() => {
                    tracing::warn!(identity = self.identity, "lost the lease; stopped all passes");
                }
            }
            self.term.end();
            if stop.is_cancelled() {
                self.release().await;
            }
        }
    }

    /// Waits until the Lease is won.
    async fn win(&mut self) {
        while !self.attempt().await {
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Renews until the Lease is lost.
    async fn keep(&mut self) {
        while self.term.is_active() {
            tokio::time::sleep(PERIOD).await;
            // A failed renewal is retried until the end of the term. Another holder ends the term.
            self.attempt().await;
        }
    }

    /// Tries once. Returns whether the Lease is certainly held.
    async fn attempt(&mut self) -> bool {
        let before = Instant::now();
        match tokio::time::timeout(REQUEST_TIMEOUT, self.compare_and_set(before)).await {
            Ok(Ok(true)) => {
                self.term.renew(before, TERM);
                true
            }
            Ok(Ok(false)) => {
                self.term.end();
                false
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to get or renew the lease");
                false
            }
            Err(_) => {
                let timeout_s = REQUEST_TIMEOUT.as_secs();
                tracing::warn!(timeout_s, "the lease request timed out");
                false
            }
        }
    }

    async fn compare_and_set(&mut self, now: Instant) -> kube::Result<bool> {
        let lease = self.leases.get_opt(OPERATOR_NAME).await?;
        let version = lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone())
            .unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, now));
        }
        let unchanged =
            self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| now.duration_since(*since));
        let spec = lease.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        let step = step(spec.as_ref(), &self.identity, unchanged);
        let answer = match (step, lease) {
            (Step::Wait, _) => return Ok(false),
            (Step::Create, _) | (_, None) => {
                let metadata =
                    ObjectMeta { name: Some(OPERATOR_NAME.to_owned()), ..ObjectMeta::default() };
                self.leases
                    .create(
                        &PostParams::default(),
                        &Lease { metadata, spec: Some(held(None, &self.identity)) },
                    )
                    .await
            }
            (Step::Renew | Step::Take, Some(lease)) => {
                let lease = Lease { spec: Some(held(spec.as_ref(), &self.identity)), ..lease };
                self.leases.replace(OPERATOR_NAME, &PostParams::default(), &lease).await
            }
        };
        match answer {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease, so that a standby can take it at once.
    async fn release(&self) {
        let released = async {
            let Some(mut lease) = self.leases.get_opt(OPERATOR_NAME).await? else { return Ok(()) };
            let Some(spec) = lease
                .spec
                .as_mut()
                .filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
            else {
                return Ok(());
            };
            spec.holder_identity = Some(String::new());
            self.leases.replace(OPERATOR_NAME, &PostParams::default(), &lease).await.map(drop)
        };
        let released: kube::Result<()> = match tokio::time::timeout(REQUEST_TIMEOUT, released).await
        {
            Ok(released) => released,
            Err(_) => return tracing::warn!("releasing the lease timed out"),
        };
        match released {
            Ok(()) => tracing::info!(identity = self.identity, "released the lease"),
            Err(error) => tracing::warn!(%error, "failed to release the lease"),
        }
    }
}

/// The next action of a candidate on a Lease that has not changed for a time.
fn step(lease: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> Step {
    let Some(spec) = lease else { return Step::Create };
    match spec.holder_identity.as_deref() {
        None | Some("") => Step::Take,
        Some(holder) if holder == identity => Step::Renew,
        Some(_) => {
            let duration = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(LEASE, Duration::from_secs);
            if unchanged >= duration { Step::Take } else { Step::Wait }
        }
    }
}

/// The spec of the Lease held by a candidate, after `old`.
fn held(old: Option<&LeaseSpec>, identity: &str) -> LeaseSpec {
    let now = Some(MicroTime(Timestamp::now()));
    let renewed = old.filter(|old| old.holder_identity.as_deref() == Some(identity));
    let transitions = old.and_then(|old| old.lease_transitions).unwrap_or(-1);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE.as_secs() as i32),
        acquire_time: renewed.map_or_else(|| now.clone(), |old| old.acquire_time.clone()),
        renew_time: now.clone(),
        lease_transitions: Some(transitions.saturating_add(i32::from(renewed.is_none()))),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests;
