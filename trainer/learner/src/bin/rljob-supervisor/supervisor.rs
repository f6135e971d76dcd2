//! The supervisor of one trainer pod: it reports to the coordinator several times a second, obeys
//! the order in the answer, and outlives its learners. It links no libtorch, takes no decision of
//! its own and never restarts a learner that ended: that is the coordinator's to order.
//!
//! ```text
//!  coordinator ◀── POST /v1/supervisors/NAME: report ── supervisor ── start, end ──▶ learners (process.rs)
//!       └───────────────── answer: order ──────────────▶   │ order.rs decides
//! ```

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use rljob_protocol::supervisor::{Group, Order, SupervisorReport};
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::order::{Action, Held, decide};
use crate::process::{LearnerCommand, LearnerProcess};
use crate::reap::reap_orphans;
use crate::report::{ReportError, Reporter};

/// Between reports while learners run, unless something changed.
const INTERVAL: Duration = Duration::from_millis(500);
/// Between reports while none runs: an order to start some is all that a run waits for then.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Longest wait after the coordinator could not be reached: below the silence after which it counts
/// a supervisor as lost.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// A supervisor that is told to end does not wait for a coordinator that has not answered for so
/// long: it may be told to end as well.
const ABSENT: Duration = Duration::from_secs(6);

/// What a supervisor is told when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The run configuration, `run.json`.
    pub config: PathBuf,
    /// Folder of tokens.
    pub tokens: PathBuf,
    /// Base URL of the coordinator.
    pub coordinator: String,
    /// Its name: the pod's or the process's.
    pub name: String,
    /// Address at which other ranks reach its learners.
    pub address: String,
    /// The learner's executable.
    pub learner: PathBuf,
    /// Learner processes it runs.
    pub processes: u32,
    /// Drawn anew by each supervisor process.
    pub instance: String,
    /// When the process started, in milliseconds since 1970.
    pub started_at: u64,
    /// How long learners may go on once it is told to end.
    pub grace: Duration,
}

/// A supervisor that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// No port is free.
    #[error("failed to find a free port for the rendezvous")]
    Port(#[source] std::io::Error),
    /// No HTTP client.
    #[error("failed to make an HTTP client")]
    Client(#[source] reqwest::Error),
}

/// The supervisor's state.
pub struct Supervisor {
    settings: Settings,
    reporter: Reporter,
    held: Held,
    learners: Vec<LearnerProcess>,
    rendezvous_port: u16,
    changed: watch::Sender<()>,
    beat: watch::Sender<Instant>,
    complaint: Option<String>,
    /// When the coordinator answered last.
    answered: Instant,
    /// Once told to end: when it ends at the latest.
    leaving: Option<Instant>,
}

impl Supervisor {
    /// A supervisor without learners, whose coordinator's name leads where `resolver` says.
    /// `beat` is told the time of every turn of its loop.
    pub fn new(
        settings: Settings,
        resolver: CoordinatorResolver,
        beat: watch::Sender<Instant>,
    ) -> Result<Self, SupervisorError> {
        let reporter = Reporter::new(&settings, resolver).map_err(SupervisorError::Client)?;
        Ok(Self {
            settings,
            reporter,
            held: Held::default(),
            learners: Vec::new(),
            rendezvous_port: free_port()?,
            changed: watch::channel(()).0,
            beat,
            complaint: None,
            answered: Instant::now(),
            leaving: None,
        })
    }

    /// Reports and obeys until ordered to exit, or until `shutdown` completes and nothing is left
    /// to wait for; then ends the learners. Never gives up on the coordinator before.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), SupervisorError> {
        tokio::pin!(shutdown);
        let mut changed = self.changed.subscribe();
        let mut backoff = INTERVAL;
        while !self.has_left() {
            self.beat.send_replace(Instant::now());
            reap_orphans(&self.learners.iter().filter_map(LearnerProcess::pid).collect::<Vec<_>>());
            let state = self.state();
            let answer = tokio::select! {
                answer = self.reporter.report(&state, self.held.epoch) => answer,
                () = &mut shutdown, if self.leaving.is_none() => {
                    self.leave();
                    continue;
                }
            };
            if answer.is_ok() {
                self.answered = Instant::now();
            }
            backoff = if answer.is_err() {
                (backoff * 2).min(MAX_BACKOFF)
            } else if self.runs_any() {
                INTERVAL
            } else {
                IDLE_INTERVAL
            };
            self.complain(answer.as_ref().err().map(ReportError::line));
            match answer {
                Ok((epoch, order)) if !self.obey(epoch, &order)? => break,
                // Its pod was replaced and will be ended; it must not end by itself, or it would
                // come back under its old name.
                Err(ReportError::Replaced(_)) => {
                    self.learners.iter().for_each(LearnerProcess::stop);
                }
                Ok(_) | Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                _ = changed.changed() => {}
                () = &mut shutdown, if self.leaving.is_none() => self.leave(),
            }
        }
        self.end_learners().await;
        Ok(())
    }

    fn leave(&mut self) {
        tracing::info!(
            seconds = self.settings.grace.as_secs(),
            "told to end; learners may go on to write a checkpoint"
        );
        self.leaving = Some(Instant::now() + self.settings.grace);
    }

    /// Told to end, and out of time, or without anybody to wait for: no learner runs, or no
    /// coordinator orders a checkpoint.
    fn has_left(&self) -> bool {
        self.leaving.is_some_and(|latest| {
            Instant::now() >= latest || !self.runs_any() || self.answered.elapsed() > ABSENT
        })
    }

    fn runs_any(&self) -> bool {
        self.learners.iter().any(LearnerProcess::is_running)
    }

    fn state(&self) -> SupervisorReport {
        SupervisorReport {
            instance: self.settings.instance.clone(),
            started_at: self.settings.started_at,
            address: self.settings.address.clone(),
            rendezvous_port: self.rendezvous_port,
            processes: self.settings.processes,
            attempt: self.held.attempt,
            learners: self.learners.iter().map(LearnerProcess::state).collect(),
            terminating: self.leaving.is_some(),
        }
    }

    /// Acts on an order; returns whether to go on.
    fn obey(&mut self, epoch: u64, order: &Order) -> Result<bool, SupervisorError> {
        self.held.running = self.learners.iter().filter(|learner| learner.is_running()).count();
        let action = decide(&self.held, epoch, order);
        if !matches!(action, Action::Refuse(_)) {
            self.held.epoch = epoch;
        }
        match action {
            Action::Exit => return Ok(false),
            Action::Refuse(reason) => tracing::warn!(reason, "refused an order"),
            Action::Kill => self.learners.iter().for_each(LearnerProcess::stop),
            Action::Start(group) => self.start(&group)?,
            Action::Keep => {}
        }
        Ok(true)
    }

    fn start(&mut self, group: &Group) -> Result<(), SupervisorError> {
        tracing::info!(
            attempt = group.attempt,
            first_rank = group.first_rank,
            world_size = group.world_size,
            "starting learners"
        );
        self.held.attempt = Some(group.attempt);
        self.rendezvous_port = free_port()?;
        let ranks = group.first_rank..group.first_rank + self.settings.processes;
        self.learners = ranks
            .map(|rank| {
                LearnerProcess::start(
                    learner_command(&self.settings, group, rank, self.held.epoch),
                    self.changed.clone(),
                )
            })
            .collect();
        self.changed.send_replace(());
        Ok(())
    }

    async fn end_learners(&mut self) {
        self.learners.iter().for_each(LearnerProcess::stop);
        for learner in &mut self.learners {
            learner.ended().await;
        }
    }

    /// Logs an error once, and once more when it is over.
    fn complain(&mut self, complaint: Option<String>) {
        if complaint == self.complaint {
            return;
        }
        if let Some(error) = &complaint {
            tracing::warn!(
                error,
                "the report was not answered; learners go on and reports are repeated"
            );
        } else {
            tracing::info!("the coordinator answers again");
        }
        self.complaint = complaint;
    }
}

fn learner_command(settings: &Settings, group: &Group, rank: u32, epoch: u64) -> LearnerCommand {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |name: &str, value: OsString| arguments.extend([OsString::from(name), value]);
    add("--config", settings.config.clone().into());
    add("--tokens", settings.tokens.clone().into());
    add("--coordinator", settings.coordinator.clone().into());
    add("--address", settings.address.clone().into());
    add("--rank", rank.to_string().into());
    add("--world-size", group.world_size.to_string().into());
    add("--epoch", epoch.to_string().into());
    add("--attempt", group.attempt.to_string().into());
    add("--rendezvous", format!("{}:{}", group.rendezvous_address, group.rendezvous_port).into());
    if let Some(restore) = &group.restore {
        add("--restore", restore.path.clone().into());
        add("--restore-version", restore.version.to_string().into());
    }
    LearnerCommand { program: settings.learner.clone(), arguments, rank }
}

fn free_port() -> Result<u16, SupervisorError> {
    let listener = TcpListener::bind(("0.0.0.0", 0)).map_err(SupervisorError::Port)?;
    Ok(listener.local_addr().map_err(SupervisorError::Port)?.port())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Settings, learner_command};
    use rljob_protocol::supervisor::{Group, Restore};
    use rljob_protocol::version::Version;

    #[test]
    fn a_learner_is_told_its_place_in_the_group() {
        let settings = Settings {
            config: "/c/run.json".into(),
            tokens: "/t".into(),
            coordinator: "http://coordinator:8080".into(),
            name: "trainer-1".into(),
            address: "10.0.0.2".into(),
            learner: "/bin/rljob-learner".into(),
            processes: 2,
            instance: "a".into(),
            started_at: 1,
            grace: Duration::ZERO,
        };
        let restore = Some(Restore {
            version: Version { step: 7, attempt: 1 },
            path: "/run/checkpoints/step-7.attempt-1".into(),
        });
        let group = Group {
            attempt: 2,
            first_rank: 2,
            world_size: 4,
            rendezvous_address: "10.0.0.1".into(),
            rendezvous_port: 29400,
            restore,
        };
        let command = learner_command(&settings, &group, 3, 5);
        let arguments: Vec<_> =
            command.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        assert_eq!(
            arguments.join(" "),
            "--config /c/run.json --tokens /t --coordinator http://coordinator:8080 --address 10.0.0.2 --rank 3 --world-size 4 --epoch 5 --attempt 2 \
             --rendezvous 10.0.0.1:29400 --restore /run/checkpoints/step-7.attempt-1 --restore-version step-7.attempt-1"
        );
    }
}
