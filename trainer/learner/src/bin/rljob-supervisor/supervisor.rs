//! Supervisor of one trainer pod: reports to the coordinator several times a second and follows the
//! order in the response. It outlives its learners, links no libtorch, and never restarts a learner
//! without an order.
//!
//! ```text
//!  coordinator ◀── POST /v1/supervisors/NAME: report ── supervisor ── start, kill ──▶ learners
//!       └──────────────── response: order ──────────────▶  │ order.rs decides       (process.rs)
//! ```

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rljob_http::ClientTls;
use rljob_protocol::supervisor::{Group, Order, SupervisorReport};
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::gpu_faults::{self, GpuFaults};
use crate::gpus;
use crate::order::{Action, SupervisorState, decide};
use crate::process::LearnerProcess;
use crate::reap::reap_orphans;
use crate::report::{ReportError, Reporter};
use crate::settings::Settings;

/// Interval of reports while learners run; a change is reported immediately.
const INTERVAL: Duration = Duration::from_millis(500);
/// Interval of reports without learners, when the run waits for the order to start them.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum backoff while the coordinator is unreachable; below the time after which it counts a
/// supervisor as lost.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Time without a response after which a terminating supervisor stops waiting for the coordinator,
/// which may be terminating as well.
const ABSENT: Duration = Duration::from_secs(6);

/// A fatal error of the supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("failed to find a free port for the rendezvous")]
    Port(#[source] std::io::Error),
    #[error("failed to create an HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Main loop of the supervisor.
pub struct Supervisor {
    settings: Settings,
    reporter: Reporter,
    state: SupervisorState,
    learners: Vec<LearnerProcess>,
    rendezvous_port: u16,
    changed: watch::Sender<()>,
    beat: watch::Sender<Instant>,
    /// Last logged error of a report.
    report_error: Option<String>,
    /// Last response of the coordinator.
    responded: Instant,
    /// Start of the termination, by SIGTERM or SIGINT.
    terminating: Option<Instant>,
    gpu_faults: Arc<Mutex<GpuFaults>>,
    /// Number of faults when the learners started.
    faults_before: u32,
}

impl Supervisor {
    /// Creates a supervisor without learners. `resolver` resolves the host of the coordinator, and
    /// `tls` accepts only it; `beat` receives the start of every iteration of the loop.
    ///
    /// # Errors
    /// No port is free, or the HTTP client cannot be created.
    pub fn new(
        settings: Settings,
        resolver: CoordinatorResolver,
        tls: &ClientTls,
        beat: watch::Sender<Instant>,
    ) -> Result<Self, SupervisorError> {
        let Settings { coordinator, name, tokens, .. } = &settings;
        let reporter = Reporter::new(coordinator, name, tokens, resolver, tls)
            .map_err(SupervisorError::Client)?;
        let changed = watch::channel(()).0;
        let visible = || std::env::var(gpus::VISIBLE).ok();
        let gpu_faults = settings.on_gpus.then(|| gpu_faults::watch(visible(), changed.clone()));
        Ok(Self {
            settings,
            reporter,
            state: SupervisorState::default(),
            learners: Vec::new(),
            rendezvous_port: free_port()?,
            gpu_faults: gpu_faults.unwrap_or_default(),
            faults_before: 0,
            changed,
            beat,
            report_error: None,
            responded: Instant::now(),
            terminating: None,
        })
    }

    /// Reports and follows orders until an order to exit, or until `shutdown` completes and no
    /// learner needs more time; then kills the learners. An unreachable coordinator is retried
    /// without limit.
    ///
    /// # Errors
    /// No port is free for the rendezvous of a new attempt.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), SupervisorError> {
        tokio::pin!(shutdown);
        let mut changed = self.changed.subscribe();
        let mut backoff = INTERVAL;
        while !self.is_terminated() {
            self.beat.send_replace(Instant::now());
            reap_orphans(&self.learners.iter().filter_map(LearnerProcess::pid).collect::<Vec<_>>());
            let report = self.report();
            let response = tokio::select! {
                response = self.reporter.report(report, self.state.epoch) => response,
                () = &mut shutdown, if !self.is_terminating() => {
                    self.terminate();
                    continue;
                }
            };
            if response.is_ok() {
                self.responded = Instant::now();
            }
            backoff = if response.is_err() {
                backoff.saturating_mul(2).min(MAX_BACKOFF)
            } else if self.runs_any() {
                INTERVAL
            } else {
                IDLE_INTERVAL
            };
            self.log_report_error(response.as_ref().err().map(ReportError::line));
            match response {
                Ok((epoch, order)) if !self.follow(epoch, &order)? => break,
                // The pod was replaced and will be deleted. An exit here would restart the
                // container under its old name.
                Err(ReportError::Replaced(_)) => {
                    self.learners.iter().for_each(LearnerProcess::stop);
                }
                Ok(_) | Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                _ = changed.changed() => {}
                () = &mut shutdown, if !self.is_terminating() => self.terminate(),
            }
        }
        self.kill_learners().await;
        Ok(())
    }

    fn is_terminating(&self) -> bool {
        self.terminating.is_some()
    }

    fn terminate(&mut self) {
        tracing::info!(
            seconds = self.settings.grace.as_secs(),
            "terminating; learners keep running so that they can write a checkpoint"
        );
        self.terminating = Some(Instant::now());
    }

    /// Whether the termination is complete: past its deadline, without running learners, or without
    /// a coordinator that could order a checkpoint.
    fn is_terminated(&self) -> bool {
        self.terminating.is_some_and(|since| {
            since.elapsed() >= self.settings.grace
                || !self.runs_any()
                || self.responded.elapsed() > ABSENT
        })
    }

    fn runs_any(&self) -> bool {
        self.learners.iter().any(LearnerProcess::is_running)
    }

    fn report(&self) -> SupervisorReport {
        let faults = self.gpu_faults.lock();
        let learners = self.learners.iter().map(LearnerProcess::state);
        SupervisorReport {
            instance: self.settings.instance.clone(),
            started_at: self.settings.started_at,
            uid: self.settings.uid.clone(),
            group: self.settings.group.clone(),
            address: self.settings.address.clone(),
            rendezvous_port: self.rendezvous_port,
            processes: self.settings.processes,
            attempt: self.state.attempt,
            learners: learners.map(|state| faults.explain(state, self.faults_before)).collect(),
            terminating: self.is_terminating(),
            gpu_faults: faults.newest(),
        }
    }

    /// Acts on an order; returns whether to continue.
    fn follow(&mut self, epoch: u64, order: &Order) -> Result<bool, SupervisorError> {
        self.state.running = self.learners.iter().filter(|learner| learner.is_running()).count();
        let action = decide(&self.state, epoch, order);
        if !matches!(action, Action::Reject(_)) {
            self.state.epoch = epoch;
        }
        match action {
            Action::Exit => return Ok(false),
            Action::Reject(reason) => tracing::warn!(reason, "rejected an order"),
            Action::Kill => self.learners.iter().for_each(LearnerProcess::stop),
            Action::Start(group) => self.start(&group)?,
            Action::Keep => {}
        }
        Ok(true)
    }

    fn start(&mut self, group: &Group) -> Result<(), SupervisorError> {
        rljob_logging::set_attempt(group.attempt);
        tracing::info!(
            attempt = group.attempt,
            first_rank = group.first_rank,
            world_size = group.world_size,
            "starting learners"
        );
        self.state.attempt = Some(group.attempt);
        self.rendezvous_port = free_port()?;
        self.faults_before = self.gpu_faults.lock().count();
        let ranks = group.first_rank..group.first_rank.saturating_add(self.settings.processes);
        self.learners = ranks
            .map(|rank| {
                LearnerProcess::start(
                    self.settings.learner_command(group, rank, self.state.epoch),
                    self.changed.clone(),
                )
            })
            .collect();
        self.changed.send_replace(());
        Ok(())
    }

    async fn kill_learners(&mut self) {
        self.learners.iter().for_each(LearnerProcess::stop);
        for learner in &mut self.learners {
            learner.ended().await;
        }
    }

    /// Logs changes of the error of reports, including the first success.
    fn log_report_error(&mut self, error: Option<String>) {
        if error == self.report_error {
            return;
        }
        if let Some(error) = error.as_ref().filter(|_| self.state.epoch == 0) {
            tracing::info!(error, "waiting for the coordinator");
        } else if let Some(error) = &error {
            tracing::warn!(
                error,
                "failed to report to the coordinator; learners keep running, the report is retried"
            );
        } else {
            tracing::info!("the coordinator responds again");
        }
        self.report_error = error;
    }
}

fn free_port() -> Result<u16, SupervisorError> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let listener = rljob_http::listen(any).map_err(SupervisorError::Port)?;
    Ok(listener.local_addr().map_err(SupervisorError::Port)?.port())
}
