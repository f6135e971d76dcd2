//! The operator's process: reads its key, starts the controller and the endpoint for metrics and health, and ends both on SIGTERM.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser;
use kube::api::ListParams;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use rljob_crds::RLJob;
use rljob_crds::names::MANAGED_BY;
use rljob_operator::apply::Applied;
use rljob_operator::controller::{self, Context};
use rljob_operator::desired::Settings;
use rljob_operator::install::{DEFAULT_IMAGE, METRICS_PORT};
use rljob_operator::pods::LastSeen;
use rljob_operator::poll::Pollers;
use rljob_operator::server::{self, Metrics};
use rljob_operator::token_key;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Turns RLJobs into inference, coordinator and trainer pods.
#[derive(Parser)]
#[command(name = "rljob-operator", version)]
struct Arguments {
    /// Image of every role that names none: the operator's own.
    #[arg(long, env = "RLJOB_IMAGE", default_value = DEFAULT_IMAGE)]
    image: String,
    /// File with the key that tokens are derived from, at least 32 bytes. Default: a Secret of the operator's namespace, made when there is none.
    #[arg(long)]
    token_key_file: Option<PathBuf>,
    /// Look after the RLJobs of this namespace only. Default: all.
    #[arg(long)]
    namespace: Option<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], METRICS_PORT)))]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("failed to find an API server: neither a pod's service account nor a kubeconfig works")?;
    check_crd(&client, arguments.namespace.as_deref()).await?;
    let token_key = match &arguments.token_key_file {
        Some(path) => token_key::from_file(path)?,
        None => token_key::from_secret(&client, client.default_namespace()).await?,
    };
    let (pollers, triggers) = Pollers::new().context("failed to make an HTTP client")?;
    let metrics = Metrics::new().context("failed to register metrics")?;
    let reporter = Reporter { controller: MANAGED_BY.to_owned(), instance: std::env::var("HOSTNAME").ok() };
    let (controller, store) = controller::new(&client, arguments.namespace.as_deref());
    let context = Context {
        namespace: arguments.namespace,
        cache: Arc::default(),
        applied: Applied::default(),
        written: controller::Written::default(),
        recorder: Recorder::new(client.clone(), reporter),
        client,
        settings: Settings { image: arguments.image },
        token_key,
        pollers,
        metrics: metrics.clone(),
        failures: controller::Failures::default(),
        rejections: controller::Rejections::default(),
        last_seen: LastSeen::default(),
    };
    let stop = stop_on_signal()?;
    let server = server::serve(arguments.listen, metrics, store, stop.clone());
    let controller = controller::run(controller, Arc::new(context), triggers, stop.clone());
    let (served, ()) = tokio::join!(
        async {
            let served = server.await;
            stop.cancel();
            served
        },
        controller
    );
    served.with_context(|| format!("failed to serve metrics and health on {}", arguments.listen))
}

/// Says how to install the CRD, instead of failing in every watch.
async fn check_crd(client: &Client, namespace: Option<&str>) -> anyhow::Result<()> {
    let jobs: Api<RLJob> = namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace));
    match jobs.list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => bail!("the CRD is not installed: run `rljob crd | kubectl apply -f -`"),
        Err(error) => Err(error).context("failed to list RLJobs"),
    }
}

fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
    });
    Ok(stop)
}
