//! The operator's process: reads its key, serves metrics and health, and runs the controller, at
//! once or whenever it is the leader; ends all on SIGTERM.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use kube::api::ListParams;
use kube::runtime::events::Reporter;
use kube::{Api, Client, Config};
use rljob_crds::RLJob;
use rljob_crds::names::MANAGED_BY;
use rljob_operator::apply::Applied;
use rljob_operator::controller::{self, Context};
use rljob_operator::desired::Settings;
use rljob_operator::desired::tokens::TokenKey;
use rljob_operator::install::{DEFAULT_IMAGE, METRICS_PORT};
use rljob_operator::leader::{Elector, Term};
use rljob_operator::metrics::Metrics;
use rljob_operator::pods::LastSeen;
use rljob_operator::poll::Pollers;
use rljob_operator::requests;
use rljob_operator::server::{self, App};
use rljob_operator::token_key;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A pass is many small allocations of JSON: with this one it takes a third less CPU, and what a
/// burst of new jobs took is given back (docs/results.md).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time that passes in progress have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Turns RLJobs into inference, coordinator and trainer pods.
#[derive(Parser)]
#[command(name = "rljob-operator", version)]
struct Arguments {
    /// Image of every role that names none: the operator's own.
    #[arg(long, env = "RLJOB_IMAGE", default_value = DEFAULT_IMAGE)]
    image: String,
    /// File with the key that tokens are derived from, at least 32 bytes. Default: a Secret of the
    /// operator's namespace, made when there is none.
    #[arg(long)]
    token_key_file: Option<PathBuf>,
    /// Look after the RLJobs of this namespace only. Default: all.
    #[arg(long)]
    namespace: Option<String>,
    /// Work only while holding the Lease `rljob-operator` of the operator's namespace, so that
    /// several replicas may run. Default: work.
    #[arg(long)]
    leader_elect: bool,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], METRICS_PORT)))]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Box::pin(run(Arguments::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = Config::infer().await.context(
        "failed to find an API server: neither a pod's service account nor a kubeconfig works",
    )?;
    // Elections, and the key that is made once for all operators, come before there is a leader.
    let plain =
        Client::try_from(config.clone()).context("failed to make a client of the API server")?;
    check_crd(&plain, arguments.namespace.as_deref()).await?;
    let token_key = match &arguments.token_key_file {
        Some(path) => token_key::from_file(path)?,
        None => token_key::from_secret(&plain, plain.default_namespace()).await?,
    };
    let metrics = Metrics::new().context("failed to register metrics")?;
    let term = if arguments.leader_elect { Term::none() } else { Term::endless() };
    let client = requests::client(config, term.clone(), metrics.requests())
        .context("failed to make a client of the API server")?;
    let app = App::new(metrics.clone(), term.clone());
    let stop = stop_on_signal()?;
    let server = server::serve(arguments.listen, app.clone(), stop.clone());
    let leader = Leader {
        client,
        namespace: arguments.namespace,
        image: arguments.image,
        token_key,
        metrics,
        app,
    };
    let work = async {
        if arguments.leader_elect {
            Elector::new(plain, term)?.run(stop.clone(), || leader.lead(&stop)).await;
        } else {
            leader.lead(&stop).await;
        }
        anyhow::Ok(())
    };
    let (served, worked) = tokio::join!(
        async {
            let served = server.await;
            stop.cancel();
            served
        },
        async {
            let worked = work.await;
            stop.cancel();
            worked
        }
    );
    served
        .with_context(|| format!("failed to serve metrics and health on {}", arguments.listen))?;
    worked
}

/// What a leader starts with, each time that it leads.
struct Leader {
    client: Client,
    namespace: Option<String>,
    image: String,
    token_key: TokenKey,
    metrics: Metrics,
    app: App,
}

impl Leader {
    /// Looks after all jobs until `stop`, and then for as long as passes in progress may take.
    async fn lead(&self, stop: &CancellationToken) {
        let (pollers, triggers) = match Pollers::new() {
            Ok(pollers) => pollers,
            Err(error) => return tracing::error!(%error, "failed to make an HTTP client"),
        };
        let (controller, jobs) = controller::new(&self.client, self.namespace.as_deref());
        let context = Arc::new(Context {
            namespace: self.namespace.clone(),
            cache: Arc::default(),
            applied: Applied::default(),
            written: controller::Written::default(),
            reporter: Reporter {
                controller: MANAGED_BY.to_owned(),
                instance: std::env::var("HOSTNAME").ok(),
            },
            client: self.client.clone(),
            settings: Settings { image: self.image.clone() },
            token_key: self.token_key.clone(),
            pollers,
            metrics: self.metrics.clone(),
            failures: controller::Failures::default(),
            rejections: controller::Rejections::default(),
            last_seen: LastSeen::default(),
        });
        let _leads = self.app.leads(jobs, context.clone());
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            () = controller::run(controller, context, triggers, stop.clone()) => {}
            () = overdue => tracing::warn!("passes in progress were cut off after {} s", GRACE.as_secs()),
        }
    }
}

/// Says how to install the CRD, instead of failing in every watch.
async fn check_crd(client: &Client, namespace: Option<&str>) -> anyhow::Result<()> {
    let jobs: Api<RLJob> = namespace.map_or_else(
        || Api::all(client.clone()),
        |namespace| Api::namespaced(client.clone(), namespace),
    );
    match jobs.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            bail!("the CRD is not installed: run `rljob crd | kubectl apply -f -`")
        }
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
