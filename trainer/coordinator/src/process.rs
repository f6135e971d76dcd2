//! Coordinator process: startup, tasks and graceful shutdown.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_crds::job::WeightSyncMethod;
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER, TOKEN_OPERATOR};
use rljob_http::{ClientTls, Limits, Role, Routes, ServerTls, TlsError};
use rljob_protocol::run_config;
use rljob_storage::{RunStore, StorageError, coordinator_resolver, durable};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::batches::Batches;
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::core::learner_group::LEARNER_INPUT;
use crate::core::{Facts, Record, Run, Settings, Stage, record};
use crate::engines::{EngineClient, Fleet};
use crate::files::Files;
use crate::input::InputError;
use crate::input::hub::{self, Downloads};
use crate::peers::RejectedPeers;
use crate::persistence::fence::Fence;
use crate::persistence::identity::{Identity, renew};
use crate::persistence::journal::shared::SharedJournal;
use crate::persistence::journal::{Journal, JournalError};
use crate::persistence::mirror::Mirror;
use crate::persistence::restore::RestoreError;
use crate::persistence::{checkpoints, copies, damage, exports, restore};
use crate::recorder::Recorder;
use crate::reward::Runner;
use crate::run_handle::RunHandle;
use crate::server::startup_gate::StartupGate;
use crate::telemetry::Metrics;
use crate::tokens::Token;
use crate::{scheduler, server, sync};

/// Grace period of requests in flight at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Limits of the HTTP server. Each learner and supervisor has a connection.
const LIMITS: Limits =
    Limits { connections: 8192, headers: Duration::from_secs(120), body: Duration::from_secs(60) };

/// Command-line options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The run configuration, `run.json`.
    pub config: PathBuf,
    /// Folder of tokens.
    pub tokens: PathBuf,
    /// Listen address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Where supervisors and learners reach it; where none is given, they go by its name.
    pub address: Option<IpAddr>,
    /// Where commands of rewards run.
    pub reward_runner: Runner,
    /// Random number of this process.
    pub incarnation: u64,
}

/// Downloads the Hugging Face model of a run in a bucket into the scratch space of this pod.
pub async fn download_model(options: &Options) -> anyhow::Result<()> {
    Ok(hub::download_model(&read_config(options)?).await?)
}

/// Raises the limit of open files to the hard limit: each request to an engine has a connection.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, ?limit, "failed to raise the limit of open files");
    }
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    raise_open_files();
    let config = read_config(options)?;
    let (identity, run_store) = (Identity::of(&config)?, RunStore::of(&config)?);
    tokio::task::spawn_blocking(move || identity.check(&run_store)).await??;
    let listener = rljob_http::listen(options.listen)
        .with_context(|| format!("failed to listen on {}", options.listen))?;
    let token = |name| Token::open(&options.tokens, name);
    let (operator, learner) = (token(TOKEN_OPERATOR)?, token(TOKEN_LEARNER)?);
    let (server_tls, engine_tls) = authentication(options, &config.uid)?;
    let client =
        EngineClient::new(token(TOKEN_ENGINE_API)?, token(TOKEN_ENGINE_ADMIN)?, Some(engine_tls));
    announce(listener.local_addr()?)?;
    let (gate, shut) = (StartupGate::default(), CancellationToken::new());
    let waiting = tokio::spawn(rljob_http::serve(
        TcpListener::from_std(listener.try_clone()?)?,
        Routes::new(StartupGate::plain_router(), gate.router(operator.clone()), &server_tls),
        LIMITS,
        shut.clone(),
    ));
    let epoch = tokio::select! {
        epoch = gate.asked() => epoch,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let coordinator = Arc::new(open(config, client, options, epoch).await?);
    let files = coordinator.recorder.files.clone();
    coordinator.journal.call(move |journal| files.catch_up(journal)).await?;
    if let Some(address) = options.address {
        let run_store = coordinator.run_store.clone();
        tokio::task::spawn_blocking(move || coordinator_resolver::announce(&run_store, address))
            .await??;
    }
    let mut tasks = start_tasks(&coordinator);

    let stop = coordinator.stop.clone();
    let plain = server::plain_router(Arc::clone(&coordinator));
    let routes = server::router(Arc::clone(&coordinator), operator, learner);
    let routes = Routes::new(plain, routes, &server_tls);
    let listener = TcpListener::from_std(listener)?;
    let mut server = tokio::spawn(rljob_http::serve(listener, routes, LIMITS, stop.clone()));
    gate.open(Arc::clone(&coordinator));
    shut.cancel();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut server => return ended.context("the server ended"),
        panicked = panicked(&mut tasks) => return Err(panicked).context("a task ended"),
        result = unable_to_act(&coordinator) => return result,
    }
    tracing::info!("shutting down");
    stop.cancel();
    finish([waiting, server], tasks).await;
    Ok(())
}

/// Completes requests in progress, for up to [`SHUTDOWN`].
async fn finish(servers: [JoinHandle<()>; 2], mut tasks: JoinSet<()>) {
    let ended = tokio::time::timeout(SHUTDOWN, async {
        for server in servers {
            let _ = server.await;
        }
        while tasks.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        tracing::warn!("requests in flight were aborted");
    }
}

/// Certificate of this coordinator, for its clients and for engines.
fn authentication(options: &Options, uid: &str) -> Result<(ServerTls, ClientTls), TlsError> {
    let certificate = options.tokens.join(Role::Coordinator.file());
    let clients = [Role::Operator, Role::Trainer].map(|role| role.server_name(uid));
    let engine = Role::Inference.server_name(uid);
    Ok((ServerTls::of_file(&certificate, &clients)?, ClientTls::of_file(&certificate, &engine)?))
}

/// Waits until another coordinator owns the run, or the journal is damaged.
async fn unable_to_act(coordinator: &Coordinator) -> anyhow::Result<()> {
    tokio::select! {
        () = coordinator.journal.replaced() => {
            anyhow::bail!("another coordinator has taken this run over")
        }
        () = coordinator.journal.fence().lost() => Ok(coordinator.journal.fence().ask().await?),
        message = coordinator.journal.panicked() => {
            anyhow::bail!("a call of the journal ended: {message}")
        }
        () = coordinator.journal.damaged() => {
            let path = coordinator.journal.fence().journal();
            let detail = "a call could not read it; the log has the cause".to_owned();
            let error = anyhow::Error::new(JournalError::Damaged { path, detail });
            let run_store = coordinator.run_store.clone();
            let explain = move || damage::with_way_back(error, &run_store);
            Err(tokio::task::spawn_blocking(explain).await?)
        }
    }
}

/// Waits until a task panics. Tasks that end otherwise are ignored.
async fn panicked(tasks: &mut JoinSet<()>) -> JoinError {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            return error;
        }
    }
    std::future::pending().await
}

/// Starts the tasks that run beside the server.
fn start_tasks(coordinator: &Arc<Coordinator>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(scheduler::tick(Arc::clone(coordinator)));
    tasks.spawn(scheduler::work(Arc::clone(coordinator)));
    if coordinator.config.spec.weight_sync_method() == WeightSyncMethod::Disk {
        let weight_sync = Arc::new(coordinator.weight_sync());
        tasks.spawn(sync::disk::run(weight_sync, coordinator.stop.clone()));
    }
    tasks.spawn(copies::run(
        coordinator.run_store.clone(),
        coordinator.journal.fence().clone(),
        coordinator.stop.clone(),
    ));
    let monitored = Arc::clone(coordinator);
    tasks.spawn(async move {
        monitored.fleet.monitor(monitored.journal.fence(), monitored.stop.clone()).await;
    });
    tasks
}

fn read_config(options: &Options) -> anyhow::Result<RunConfig> {
    let (config, ignored) = run_config::read(&options.config)?;
    if !ignored.is_empty() {
        tracing::warn!(fields = ?ignored, "ignored fields of a newer release");
    }
    Ok(config)
}

/// Claims the run directory, opens it and reads back where the run stands.
pub(crate) async fn open(
    config: RunConfig,
    client: EngineClient,
    options: &Options,
    epoch: u64,
) -> anyhow::Result<Coordinator> {
    let incarnation = options.incarnation;
    let clock = Clock::start();
    let run_store = RunStore::of(&config)?;
    let journal = claim(&config, &run_store, incarnation, epoch).await?;
    let files = Files::open(journal.fence())?;
    let (record, mut facts) = read_state(&journal, &run_store).await?;
    let newest = journal
        .call(|journal| Ok((journal.metrics(journal.last_step()?)?, journal.last_evaluation()?)))
        .await?;
    let (restore_from, failure) =
        match restore::choose(&config, &journal, !facts.checkpoints.is_empty()).await {
            Ok(restore) => (restore, None),
            Err(error @ RestoreError::None { .. }) => {
                (None, Some(scheduler::input_failure(&error)))
            }
            Err(error) => return Err(error.into()),
        };
    let settings = Settings { restore_from, ..Settings::from_config(&config) };
    if let Some(restore) = settings.restore_from.as_ref().filter(|_| facts.checkpoints.is_empty()) {
        facts.last_step = facts.last_step.max(restore.version.step);
        facts.fixed_step = facts.fixed_step.max(restore.version.step);
    }
    let restored = settings.restore_from.as_ref().map(|restore| restore.path.clone());
    let restored_position = restored_position(&config, restored).await?;
    let record = reopened(given_another_chance(record), facts.last_step, settings.total_steps);
    let too_few_steps = (facts.last_step > settings.total_steps).then(|| {
        let (done, total) = (facts.last_step, settings.total_steps);
        scheduler::input_failure(&InputError::TooFewSteps { done, total })
    });
    let mut run = Run::new(settings, record, facts, incarnation, clock.now());
    if let Some(failure) = failure.or(too_few_steps) {
        run.fail(failure);
    }
    let recorder = Recorder::new(journal.clone(), files, Metrics::new()?, clock, newest);
    Ok(Coordinator {
        config: Arc::new(config),
        run_store,
        incarnation,
        restored_position,
        clock,
        run: RunHandle::new(run, journal.clone(), clock),
        journal,
        fleet: Arc::new(Fleet::new(client, clock)),
        recorder,
        batches: Batches::default(),
        rejected_peers: RejectedPeers::default(),
        downloads: Downloads::default(),
        reward_runner: options.reward_runner.clone(),
        stop: CancellationToken::new(),
    })
}

/// The first unused loader position after the checkpoint that the run starts from.
async fn restored_position(
    config: &RunConfig,
    checkpoint: Option<PathBuf>,
) -> anyhow::Result<Option<u64>> {
    let Some(path) = checkpoint else { return Ok(None) };
    let bucket = config.bucket.clone();
    let read = move || checkpoints::position(&RunStore::at(&path, bucket.as_ref())?);
    let position = tokio::task::spawn_blocking(read).await?;
    position.context("failed to read the data position of the checkpoint in restoreFrom")
}

/// Reads the recorded state of the run, and the facts of its journal and its run store.
async fn read_state(
    journal: &SharedJournal,
    run_store: &RunStore,
) -> anyhow::Result<(Record, Facts)> {
    let (record, mut facts) = journal
        .call(|journal| {
            let facts = Facts {
                last_step: journal.last_step()?,
                fixed_step: journal.newest_batch()?.0,
                evaluated: journal.evaluated_steps()?,
                ..Facts::default()
            };
            Ok((journal.get_state(record::KEY)?, facts))
        })
        .await?;
    let record = match record {
        Some(json) => serde_json::from_value(json)
            .context("failed to read the run's state from the journal")?,
        None => Record::default(),
    };
    let run_store = run_store.clone();
    let listed = tokio::task::spawn_blocking(move || {
        Ok::<_, StorageError>((checkpoints::complete(&run_store)?, exports::newest(&run_store)?))
    });
    (facts.checkpoints, facts.exported_step) =
        listed.await?.context("failed to list checkpoints and exports")?;
    Ok((record, facts))
}

/// Opens the journal after this coordinator has claimed the run store.
async fn claim(
    config: &RunConfig,
    run_store: &RunStore,
    incarnation: u64,
    epoch: u64,
) -> anyhow::Result<SharedJournal> {
    let (config, run_store) = (config.clone(), run_store.clone());
    let claimed = tokio::task::spawn_blocking(move || {
        claim_blocking(&config, &run_store, incarnation, epoch)
            .map_err(|error| damage::with_way_back(error, &run_store))
    });
    claimed.await?
}

fn claim_blocking(
    config: &RunConfig,
    run_store: &RunStore,
    incarnation: u64,
    epoch: u64,
) -> anyhow::Result<SharedJournal> {
    let (identity, directory) = (Identity::of(config)?, &config.run_directory);
    durable::create_folder(directory)
        .with_context(|| format!("failed to make the run directory {}", directory.display()))?;
    let is_claimed = identity.check(run_store)?;
    if let RunStore::Folder(_) = run_store {
        Fence::check_journal(directory, is_claimed)?;
    }
    let fence = Fence::claim(directory, &config.uid, epoch, incarnation)?;
    let store = match run_store {
        RunStore::Folder(_) => SharedJournal::new(Journal::open(&fence.journal())?, fence),
        RunStore::Bucket(bucket) => {
            copies::fetch(run_store, &fence)?;
            let (mirror, journal) =
                Mirror::restore(bucket.clone(), directory, &fence.journal(), incarnation)?;
            SharedJournal::mirrored(journal, mirror, fence)
        }
    };
    identity.claim(run_store, || Ok(store.call_blocking(renew)?))?;
    Ok(store)
}

/// Input that could not be used may have been mended since: a new process looks again.
fn given_another_chance(mut record: Record) -> Record {
    let input = record.last_failure.as_ref().is_some_and(|failure| {
        [scheduler::INPUT_REASON, scheduler::REWARD_REASON, LEARNER_INPUT]
            .contains(&failure.reason.as_str())
    });
    if record.stage == Stage::Failed && input {
        record.stage = Stage::default();
        record.last_failure = None;
        record.attempt = record.attempt.saturating_add(1);
    }
    record
}

/// Reopens a finished run whose steps were raised: it continues from its last checkpoint.
fn reopened(mut record: Record, last_step: u32, total_steps: u32) -> Record {
    if record.stage == Stage::Finished && last_step < total_steps {
        record.stage = Stage::default();
        record.exported = false;
        record.attempt = record.attempt.saturating_add(1);
    }
    record
}

/// Prints the address on standard output, for callers that start the process with port 0.
fn announce(address: SocketAddr) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "listening on https://{address}")?;
    out.flush()
}
