//! `rljob-supervisor`: PID 1 of a trainer pod, or a process of a local run.
//!
//! Its modules are not part of the library, so that it links no libtorch and survives when a
//! learner runs out of memory. Read [`supervisor`] first, then [`order`] and [`process`].

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod gpu_faults;
mod gpus;
mod health;
mod heartbeat;
mod log_tail;
mod order;
mod process;
mod reap;
mod report;
mod settings;
mod supervisor;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use clap::Parser;
use rand::RngCore;
use rljob_crds::RunConfig;
use rljob_crds::names::EXIT_PROTOCOL_UNSUPPORTED;
use rljob_http::{ClientTls, Role, StopSignals, TlsError};
use rljob_logging::{Format, Identity};
use rljob_protocol::run_config::{self, RunConfigError};
use rljob_storage::RunStore;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::settings::Settings;
use crate::supervisor::Supervisor;

/// Starts and kills the learners of one trainer pod on orders of the coordinator.
#[derive(Parser)]
#[command(name = "rljob-supervisor", version)]
struct Arguments {
    /// The run configuration, `run.json`.
    #[arg(long)]
    config: PathBuf,
    /// Folder of tokens, one file per token, and of the certificate, tls-trainer.pem.
    #[arg(long)]
    tokens: PathBuf,
    /// Base URL of the coordinator.
    #[arg(long)]
    coordinator: String,
    /// Name of this trainer pod or process.
    #[arg(long)]
    name: String,
    /// Group of `trainer.groups` that the pod or process belongs to. Default the trainer itself.
    #[arg(long)]
    group: Option<String>,
    /// UID of this trainer pod.
    #[arg(long, env = "POD_UID")]
    uid: Option<String>,
    /// Address of the learners of this pod for other ranks.
    #[arg(long)]
    address: String,
    /// Executable of the learner. Default: `rljob-learner` in the folder of this one.
    #[arg(long)]
    learner: Option<PathBuf>,
    /// Port of `/healthz`, which is not served by default.
    #[arg(long)]
    health_port: Option<u16>,
    /// Seconds that learners keep running after SIGTERM, so that the coordinator can order a
    /// checkpoint.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    grace_seconds: u64,
    /// Terminate, as on SIGTERM, when the parent process with this id exits.
    #[arg(long, value_name = "PID")]
    exit_with_parent: Option<i32>,
}

/// Single-threaded, because a learner is killed when the thread that started it exits.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let signals = StopSignals::listen();
    let arguments = Arguments::parse();
    rljob_logging::init(Format::from_environment(), identity(&arguments));
    match run(arguments, signals).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            rljob_logging::print_fatal(&format!("{error:#}"));
            // The starter is of a release without certificates.
            let without_identity = matches!(error.downcast_ref(), Some(TlsError::Read(..)));
            if without_identity || error.downcast_ref::<RunConfigError>().is_some() {
                ExitCode::from(EXIT_PROTOCOL_UNSUPPORTED as u8)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Fields of the log of this process.
fn identity(arguments: &Arguments) -> Identity {
    let identity = Identity::from_environment();
    match &arguments.group {
        Some(group) => identity.with("group", group.as_str()),
        None => identity,
    }
}

async fn run(arguments: Arguments, signals: io::Result<StopSignals>) -> anyhow::Result<()> {
    let mut signals = signals.context("failed to listen for SIGTERM")?;
    let config = read_config(&arguments.config)?;
    let resolver = CoordinatorResolver::of(RunStore::of(&config)?);
    let tls = ClientTls::of_file(
        &arguments.tokens.join(Role::Trainer.file()),
        &Role::Coordinator.server_name(&config.uid),
    )?;
    let settings = settings(&arguments, &config)?;
    if let Some(parent) = arguments.exit_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))
            .context("failed to request termination with the parent process")?;
        // The parent may have exited before the request.
        anyhow::ensure!(
            getppid() == Pid::from_raw(parent),
            "the parent process {parent} has exited"
        );
    }
    let (beat, last_beat) = watch::channel(Instant::now());
    let supervisor = Supervisor::new(settings, resolver, &tls, beat)?.run(signals.next());
    let Some(port) = arguments.health_port else { return Ok(supervisor.await?) };
    let failed = || format!("failed to serve /healthz on port {port}");
    tokio::select! {
        ended = supervisor => Ok(ended?),
        served = health::serve(port, last_beat) => served.with_context(failed),
    }
}

fn settings(arguments: &Arguments, config: &RunConfig) -> anyhow::Result<Settings> {
    let learner = match &arguments.learner {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("failed to find the path of this executable; pass --learner")?
            .with_file_name("rljob-learner"),
    };
    let own = match &arguments.group {
        None => None,
        Some(group) => Some(config.spec.of_group(group).with_context(|| {
            format!("--group {group}: the run configuration has no such group in trainer.groups")
        })?),
    };
    let trainer = own.as_ref().map_or(&config.spec.trainer, |spec| &spec.trainer);
    Ok(Settings {
        config: arguments.config.clone(),
        tokens: arguments.tokens.clone(),
        coordinator: arguments.coordinator.trim_end_matches('/').to_owned(),
        name: arguments.name.clone(),
        uid: arguments.uid.clone(),
        address: arguments.address.clone(),
        learner,
        group: arguments.group.clone(),
        processes: trainer.processes(),
        on_gpus: trainer.gpus() > 0,
        environments: gpus::environments(trainer, |name| std::env::var(name).ok())?,
        grace: Duration::from_secs(arguments.grace_seconds),
        instance: format!("{:016x}", rand::rng().next_u64()),
        started_at: UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64),
    })
}

fn read_config(path: &Path) -> anyhow::Result<RunConfig> {
    let (config, ignored) = run_config::read(path)?;
    if !ignored.is_empty() {
        tracing::warn!(fields = ?ignored, "ignored fields of a newer release");
    }
    Ok(config)
}
