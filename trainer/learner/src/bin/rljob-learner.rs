//! `rljob-learner`: one rank of the learner group, started by a supervisor. The library's `learner`
//! module has its loop.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rljob_collective::CollectiveError;
use rljob_crds::RunConfig;
use rljob_crds::names::{EXIT_LEARNER_INPUT, EXIT_LEARNER_PEER};
use rljob_learner::coordinator_client::ClientError;
use rljob_learner::heartbeat;
use rljob_learner::learner::LearnerError;
use rljob_learner::memory::out_of_memory::silence_panics;
use rljob_learner::mesh::GroupSize;
use rljob_learner::parent::die_with_supervisor;
use rljob_learner::startup::check::check_models;
use rljob_learner::startup::memory::memory_plan;
use rljob_learner::startup::{StartArguments, StartError, start, start_group};
use rljob_logging::{Format, Identity};
use rljob_protocol::run_config::{self, RunConfigError};
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;

/// Exit code of a learner whose attempt was superseded (EX_TEMPFAIL of sysexits.h).
const FENCED: u8 = 75;

/// One rank of the learner group: model, optimizer, checkpoints, weight publication.
#[derive(Parser)]
#[command(name = "rljob-learner", version)]
struct Arguments {
    /// The run configuration, `run.json`.
    #[arg(long)]
    config: PathBuf,
    /// Print the memory plan of the job's learners on GPUs of this memory, and exit.
    #[arg(long, value_name = "BYTES", conflicts_with = "RankArguments")]
    plan_memory: Option<u64>,
    /// Check the weights of the job's models against their config.json, and exit.
    #[arg(long, conflicts_with_all = ["plan_memory", "RankArguments"])]
    check_model: bool,
    #[command(flatten)]
    rank: Option<RankArguments>,
}

/// Place of the rank in its group, and its peers. Required unless a model is checked or planned.
#[derive(clap::Args)]
struct RankArguments {
    /// Folder of tokens, one file per token.
    #[arg(long)]
    tokens: PathBuf,
    /// Base URL of the coordinator.
    #[arg(long)]
    coordinator: String,
    /// Address of this process for other ranks and engines.
    #[arg(long)]
    address: String,
    /// This rank.
    #[arg(long)]
    rank: u32,
    /// Number of ranks.
    #[arg(long)]
    world_size: u32,
    /// Number of ranks of each trainer pod.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    local_world_size: u32,
    /// Group of `trainer.groups` that the rank belongs to. Default the trainer itself.
    #[arg(long)]
    group: Option<String>,
    /// Epoch of the coordinator that ordered the start.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Attempt of the learner group.
    #[arg(long)]
    attempt: u32,
    /// HOST:PORT of the process group's store, which rank 0 hosts.
    #[arg(long, value_parser = host_and_port)]
    rendezvous: (String, u16),
    /// Folder of the checkpoint to start from.
    #[arg(long, requires = "restore_version")]
    restore: Option<PathBuf>,
    /// Name of the checkpoint, `step-N.attempt-K`.
    #[arg(long, requires = "restore")]
    restore_version: Option<Version>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging(arguments.rank.as_ref());
    silence_panics();
    let Err(error) = run(arguments) else { return ExitCode::SUCCESS };
    rljob_logging::print_fatal(&format!("{error:#}"));
    let fenced =
        matches!(error.downcast_ref(), Some(LearnerError::Coordinator(ClientError::Fenced(_))));
    let unreadable = error.downcast_ref::<RunConfigError>().is_some();
    match error.downcast_ref::<StartError>() {
        _ if unreadable => ExitCode::from(EXIT_LEARNER_INPUT as u8),
        Some(error) if error.is_input() => ExitCode::from(EXIT_LEARNER_INPUT as u8),
        _ if fenced => ExitCode::from(FENCED),
        _ if error.chain().any(<dyn std::error::Error>::is::<CollectiveError>) => {
            ExitCode::from(EXIT_LEARNER_PEER as u8)
        }
        _ => ExitCode::FAILURE,
    }
}

/// Logs in the format of the supervisor, or as text for those who read the output of a check.
fn start_logging(rank: Option<&RankArguments>) {
    let Some(rank) = rank else { return rljob_logging::init(Format::Text, Identity::default()) };
    let identity = Identity::from_environment().with("rank", rank.rank);
    let identity = match &rank.group {
        Some(group) => identity.with("group", group.as_str()),
        None => identity,
    };
    rljob_logging::init(Format::from_environment(), identity);
    rljob_logging::set_attempt(rank.attempt);
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Some(rank) = arguments.rank else {
        let config = read_config(&arguments.config)?;
        if arguments.check_model {
            return Ok(check_models(&config)?);
        }
        let bytes = arguments.plan_memory.context("no arguments of a rank")?;
        let plan = memory_plan(&config, bytes)?;
        return Ok(std::io::stdout().lock().write_all(plan.as_bytes())?);
    };
    die_with_supervisor()?;
    heartbeat::start().context("failed to start the heartbeat thread")?;
    let config = read_config(&arguments.config)?;
    anyhow::ensure!(
        rank.rank < rank.world_size,
        "rank {} is not below the world size {}",
        rank.rank,
        rank.world_size
    );
    anyhow::ensure!(
        rank.world_size.is_multiple_of(rank.local_world_size),
        "the world size {} is not a multiple of the local world size {}",
        rank.world_size,
        rank.local_world_size
    );
    let restore = rank.restore.zip(rank.restore_version);
    let arguments = StartArguments {
        tokens: rank.tokens,
        coordinator: rank.coordinator,
        address: rank.address,
        rank: rank.rank,
        size: GroupSize { world_size: rank.world_size, local_world_size: rank.local_world_size },
        epoch: rank.epoch,
        attempt: rank.attempt,
        rendezvous: rank.rendezvous,
        restore: restore.map(|(path, version)| Restore { version, path }),
    };
    match rank.group {
        None => Ok(start(config, &arguments, threads()?)?.run()?),
        Some(group) => Ok(start_group(config, &arguments, group, threads()?)?.run()?),
    }
}

fn read_config(path: &Path) -> anyhow::Result<RunConfig> {
    let (config, ignored) = run_config::read(path)?;
    if !ignored.is_empty() {
        tracing::warn!(fields = ?ignored, "ignored fields of a newer release");
    }
    Ok(config)
}

/// `OMP_NUM_THREADS`; 1 by default, because several processes share a machine.
fn threads() -> anyhow::Result<u32> {
    match std::env::var("OMP_NUM_THREADS") {
        Ok(text) => {
            text.parse().with_context(|| format!("OMP_NUM_THREADS is `{text}`, expected a number"))
        }
        Err(_) => Ok(1),
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("expected HOST:PORT")?;
    Ok((
        host.trim_matches(['[', ']']).to_owned(),
        port.parse().map_err(|_| format!("`{port}` is not a port"))?,
    ))
}
