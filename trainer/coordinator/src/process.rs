//! Coordinator process: startup, tasks and graceful shutdown.

mod trackers;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_crds::job::WeightSyncMethod;
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER, TOKEN_OPERATOR};
use rljob_http::{ClientTls, Limits, Role, Routes, ServerTls, StopSignals, TlsError};
use rljob_protocol::run_config;
use rljob_storage::{RunStore, coordinator_resolver};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::claim::claim;
use crate::coordinator::Coordinator;
use crate::engines::EngineClient;
use crate::input::hub;
use crate::opening::open;
use crate::persistence::identity::Identity;
use crate::persistence::journal::JournalError;
use crate::persistence::{copies, damage, volume_fault};
use crate::reward::{Runner, VerifierPods};
use crate::server::startup_gate::StartupGate;
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
    /// Loopback address of the dashboard; not served without.
    pub dashboard: Option<SocketAddr>,
    /// Where programs run.
    pub reward_runner: Runner,
    /// Whether verifier pods run programs.
    pub verifiers: bool,
    /// Random number of this process.
    pub incarnation: u64,
}

/// Downloads the Hugging Face model of a run in a bucket into the scratch space of this pod, until
/// SIGTERM or SIGINT.
///
/// # Errors
/// It is incomplete: the download failed, or a signal ended it.
pub async fn download_model(options: &Options) -> anyhow::Result<()> {
    let mut signals = listen()?;
    rljob_http::check_authorities()?;
    let config = read_config(options)?;
    tokio::select! {
        downloaded = hub::download_model(&config) => Ok(downloaded?),
        () = signals.next() => anyhow::bail!("the download was interrupted by a signal"),
    }
}

fn listen() -> anyhow::Result<StopSignals> {
    StopSignals::listen().context("failed to listen for SIGTERM")
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
    let mut signals = listen()?;
    raise_open_files();
    rljob_http::check_authorities()?;
    let config = Arc::new(read_config(options)?);
    check_owner(&config).await?;
    let listener = rljob_http::listen(options.listen)
        .with_context(|| format!("failed to listen on {}", options.listen))?;
    let token = |name| Token::open(&options.tokens, name);
    let (operator, learner) = (token(TOKEN_OPERATOR)?, token(TOKEN_LEARNER)?);
    let (server_tls, engine_tls) = authentication(options, &config.uid)?;
    let client =
        EngineClient::new(token(TOKEN_ENGINE_API)?, token(TOKEN_ENGINE_ADMIN)?, Some(engine_tls));
    announce(listener.local_addr()?);
    let (gate, shut) = (StartupGate::default(), CancellationToken::new());
    let waiting = tokio::spawn(rljob_http::serve(
        TcpListener::from_std(listener.try_clone()?)?,
        Routes::new(StartupGate::plain_router(), gate.router(operator.clone()), &server_tls),
        LIMITS,
        shut.clone(),
    ));
    let epoch = tokio::select! {
        epoch = gate.asked() => epoch,
        () = signals.next() => return Ok(()),
    };
    let coordinator = tokio::select! {
        opened = claim_and_open(options, config, client, (epoch, &gate)) => Arc::new(opened?),
        () = signals.next() => return Ok(()),
    };
    let files = coordinator.recorder.files.clone();
    coordinator.journal.call(move |journal| files.catch_up(journal)).await?;
    if let Some(address) = options.address {
        let run_store = coordinator.run_store.clone();
        tokio::task::spawn_blocking(move || coordinator_resolver::announce(&run_store, address))
            .await??;
    }
    let mut tasks = start_tasks(&coordinator, options);
    let stop = coordinator.stop.clone();
    let plain = server::plain_router(Arc::clone(&coordinator));
    let routes = server::router(Arc::clone(&coordinator), operator, learner);
    let routes = Routes::new(plain, routes, &server_tls);
    let listener = TcpListener::from_std(listener)?;
    let mut server = tokio::spawn(rljob_http::serve(listener, routes, LIMITS, stop.clone()));
    gate.open(Arc::clone(&coordinator));
    shut.cancel();
    tokio::select! {
        () = signals.next() => {}
        ended = &mut server => return ended.context("the server ended"),
        panicked = panicked(&mut tasks) => return Err(panicked).context("a task ended"),
        result = unable_to_act(&coordinator) => return result,
    }
    tracing::info!("shutting down");
    stop.cancel();
    finish([waiting, server], tasks).await;
    Ok(())
}

/// Claims the run for `epoch`, while `gate` reports faults of the volume, and opens it.
async fn claim_and_open(
    options: &Options,
    config: Arc<RunConfig>,
    client: EngineClient,
    (epoch, gate): (u64, &StartupGate),
) -> anyhow::Result<Coordinator> {
    let runner = reward_runner(options, &config.uid)?;
    let report = |fault| gate.report_fault(fault);
    let journal = claim(&config, options.incarnation, epoch, report).await?;
    open(config, client, runner, options.incarnation, journal).await
}

/// Rejects the run store of another run. A fault of the volume is left to [`claim`], which checks
/// the owner again.
async fn check_owner(config: &RunConfig) -> anyhow::Result<()> {
    let (identity, run_store) = (Identity::of(config)?, RunStore::of(config)?);
    let checked = tokio::task::spawn_blocking(move || identity.check(&run_store)).await?;
    let Err(error) = checked.map_err(anyhow::Error::new) else { return Ok(()) };
    volume_fault::describe(&error, &config.run_directory).map_or(Err(error), |_| Ok(()))
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

/// Where programs of rewards, tools and agents run.
fn reward_runner(options: &Options, uid: &str) -> Result<Runner, TlsError> {
    if !options.verifiers {
        return Ok(options.reward_runner.clone());
    }
    let certificate = options.tokens.join(Role::Coordinator.file());
    let tls = ClientTls::of_file(&certificate, &Role::Verifier.server_name(uid))?;
    Ok(Runner::Pods(VerifierPods::new(tls)))
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
fn start_tasks(coordinator: &Arc<Coordinator>, options: &Options) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(scheduler::tick(Arc::clone(coordinator)));
    tasks.spawn(scheduler::work(Arc::clone(coordinator)));
    if coordinator.config.spec.weight_sync_method() == WeightSyncMethod::Disk {
        let weight_sync = Arc::new(coordinator.weight_sync());
        tasks.spawn(sync::disk::run(weight_sync, coordinator.stop.clone()));
    } else if coordinator.config.spec.inference.gpus() > 0 {
        let weight_sync = Arc::new(coordinator.weight_sync());
        tasks.spawn(sync::orphans::run(weight_sync, coordinator.stop.clone()));
    }
    tasks.spawn(copies::run(
        coordinator.run_store.clone(),
        coordinator.journal.fence().clone(),
        coordinator.stop.clone(),
    ));
    if let Some(weight_sync) = coordinator.evaluation_weight_sync() {
        tasks.spawn(sync::disk::run(Arc::new(weight_sync), coordinator.stop.clone()));
    }
    for fleet in coordinator.fleets() {
        let (fleet, own) = (Arc::clone(fleet), Arc::clone(coordinator));
        tasks.spawn(async move { fleet.monitor(own.journal.fence(), own.stop.clone()).await });
    }
    if let Some(agents) = coordinator.agents.clone() {
        let stop = coordinator.stop.clone();
        tasks.spawn(async move {
            if let Err(error) = agents.serve(stop).await {
                tracing::error!(%error, "failed to serve agents");
            }
        });
    }
    trackers::start(coordinator, &mut tasks);
    if let Some(address) = options.dashboard {
        tasks.spawn(server::dashboard::serve(Arc::clone(coordinator), address));
    }
    tasks
}

fn read_config(options: &Options) -> anyhow::Result<RunConfig> {
    let (config, ignored) = run_config::read(&options.config)?;
    if !ignored.is_empty() {
        tracing::warn!(fields = ?ignored, "ignored fields of a newer release");
    }
    Ok(config)
}

/// Prints the address on standard output, for callers that start the process with port 0. In a run
/// this is a log, which may be on a full disk.
fn announce(address: SocketAddr) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "listening on https://{address}").and_then(|()| out.flush());
}
