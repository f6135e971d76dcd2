//! Leader election by a Lease, as Kubernetes's own controllers do it: of several operators one
//! writes.
//!
//! ```text
//!  stand-by ── nobody holds it, or its holder has not renewed it for 15 s ─▶ leader ── not renewed for 10 s, or somebody else's ─▶ stand-by
//! ```
//! Every write of the Lease is a compare-and-set, so that of two that try one wins. Nobody's clock
//! is read but one's own: a holder is late if the Lease has not changed for as long as it says,
//! counted from when the change was seen. A leader counts from before its request; so it stops
//! before another may start.
//!
//! A Lease cannot stop a write that is under way: each carries the UID and version of what it is
//! for. But no write begins when the time is up ([`Term`]), whatever task is behind: a process that
//! was paused finds its term over before it has learned of its successor. Why this is not a
//! library: docs/decisions/0008.

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

use crate::install::OPERATOR_NAME;
use crate::token_key;

/// Time without a renewal after which another may take the Lease.
const LEASE: Duration = Duration::from_secs(15);
/// Time without a renewal after which the leader stops.
const TERM: Duration = Duration::from_secs(10);
/// Time between two renewals, or two looks of a stand-by.
const PERIOD: Duration = Duration::from_secs(2);
/// Longest time that a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Until when this process may write.
#[derive(Clone, Debug)]
pub struct Term {
    start: Instant,
    /// Milliseconds from `start`.
    end: Arc<AtomicU64>,
}

impl Term {
    /// Not begun.
    pub fn none() -> Self {
        Self { start: Instant::now(), end: Arc::default() }
    }

    /// Of an operator that has no rival.
    pub fn endless() -> Self {
        Self { start: Instant::now(), end: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Whether it lasts.
    pub fn lasts(&self) -> bool {
        self.lasts_at(Instant::now())
    }

    fn lasts_at(&self, now: Instant) -> bool {
        (now.duration_since(self.start).as_millis() as u64) < self.end.load(Ordering::Acquire)
    }

    fn set_end(&self, end: Instant) {
        self.end
            .store(end.saturating_duration_since(self.start).as_millis() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.end.store(0, Ordering::Release);
    }
}

/// A candidate.
pub struct Elector {
    leases: Api<Lease>,
    identity: String,
    term: Term,
    /// The Lease's newest version, and when it was first seen.
    seen: Option<(String, Instant)>,
}

/// What is to be done with the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    Take,
    Wait,
}

impl Elector {
    /// A candidate for the Lease of the client's own namespace; `term` is set to what it achieves.
    ///
    /// # Errors
    /// If no name can be made for it.
    pub fn new(client: Client, term: Term) -> anyhow::Result<Self> {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| OPERATOR_NAME.to_owned());
        let mut tail = [0; 4];
        tail.copy_from_slice(&token_key::random(4).context("failed to make a candidate's name")?);
        Ok(Self {
            leases: Api::default_namespaced(client),
            identity: format!("{host}_{:08x}", u32::from_be_bytes(tail)),
            term,
            seen: None,
        })
    }

    /// Leads whenever it can, until `stop`; `lead` is dropped at once when the Lease is lost, and
    /// is given time to end by itself on `stop`.
    pub async fn run<F: Future<Output = ()>>(
        mut self,
        stop: CancellationToken,
        lead: impl Fn() -> F,
    ) {
        while stop.run_until_cancelled(self.win()).await.is_some() {
            tracing::info!(identity = self.identity, "leading");
            tokio::select! {
                () = lead() => {}
                () = self.keep() => tracing::warn!(identity = self.identity, "the lease is lost: all work is stopped"),
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
        while self.term.lasts() {
            tokio::time::sleep(PERIOD).await;
            // One that failed has until the end of the term; one that has found another holder has
            // none.
            self.attempt().await;
        }
    }

    /// Tries once. Says whether the Lease is held for certain.
    async fn attempt(&mut self) -> bool {
        let before = Instant::now();
        match tokio::time::timeout(PATIENCE, self.compare_and_set(before)).await {
            Ok(Ok(true)) => {
                self.term.set_end(before + TERM);
                true
            }
            Ok(Ok(false)) => {
                self.term.end();
                false
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to renew or look at the lease");
                false
            }
            Err(_) => {
                tracing::warn!(
                    "the API server has not answered about the lease for {} s",
                    PATIENCE.as_secs()
                );
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
                        &Lease { metadata, spec: Some(self.held(None)) },
                    )
                    .await
            }
            (Step::Renew | Step::Take, Some(lease)) => {
                let lease = Lease { spec: Some(self.held(spec.as_ref())), ..lease };
                self.leases.replace(OPERATOR_NAME, &PostParams::default(), &lease).await
            }
        };
        match answer {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The Lease as this candidate holds it, after `old`.
    fn held(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let again = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let transitions =
            old.and_then(|old| old.lease_transitions).unwrap_or(-1) + i32::from(again.is_none());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE.as_secs() as i32),
            acquire_time: again.map_or_else(|| now.clone(), |old| old.acquire_time.clone()),
            renew_time: now.clone(),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Lets a stand-by take the Lease at once.
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
        let released: kube::Result<()> = match tokio::time::timeout(PATIENCE, released).await {
            Ok(released) => released,
            Err(_) => return tracing::warn!("the lease was not released in time"),
        };
        match released {
            Ok(()) => tracing::info!(identity = self.identity, "the lease is released"),
            Err(error) => tracing::warn!(%error, "failed to release the lease"),
        }
    }
}

/// What a candidate does with the Lease that has not changed for so long.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_from_nobody_or_from_a_holder_who_is_late() {
        let lease = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        for (case, spec, unchanged, expected) in [
            ("there is none", None, 0, Step::Create),
            ("nobody has ever held it", Some(LeaseSpec::default()), 0, Step::Take),
            ("it was released", Some(lease("")), 0, Step::Take),
            ("one's own", Some(lease("me")), 14, Step::Renew),
            ("another's, renewed", Some(lease("you")), 14, Step::Wait),
            ("another's, who is late", Some(lease("you")), 15, Step::Take),
        ] {
            assert_eq!(
                step(spec.as_ref(), "me", Duration::from_secs(unchanged)),
                expected,
                "{case}"
            );
        }
    }

    #[test]
    fn a_term_ends_by_itself() {
        let term = Term::none();
        let now = term.start + Duration::from_secs(1);
        assert!(!term.lasts_at(now));
        term.set_end(now + TERM);
        assert!(term.lasts_at(now));
        assert!(!term.lasts_at(now + TERM), "though nobody has said so");
        assert!(Term::endless().lasts_at(now));
    }
}
