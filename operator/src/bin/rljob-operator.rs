//! Operator process: reads the token key, serves metrics and health, and runs the controller,
//! either always or while it is the leader. Stops on SIGTERM.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use futures::FutureExt as _;
use kube::api::ListParams;
use kube::runtime::events::Reporter;
use kube::{Api, Client, Config};
use rljob_crds::RLJob;
use rljob_crds::names::MANAGED_BY;
use rljob_http::StopSignals;
use rljob_logging::{Format, Identity};
use rljob_operator::cache::Cache;
use rljob_operator::children::Kind;
use rljob_operator::context::Context;
use rljob_operator::controller;
use rljob_operator::desired::tokens::TokenKey;
use rljob_operator::desired::{Labels, Scrapers, Settings, cidr, labels};
use rljob_operator::gang::GangSchedulers;
use rljob_operator::install::{DEFAULT_IMAGE, METRICS_PORT};
use rljob_operator::leader::{Elector, Term};
use rljob_operator::memory::Memory;
use rljob_operator::metrics::Metrics;
use rljob_operator::poll::Pollers;
use rljob_operator::requests;
use rljob_operator::server::{self, App};
use rljob_operator::token_key;
use rljob_operator::validate::Policy;
use tokio_util::sync::CancellationToken;

/// A reconciliation makes many small JSON allocations. jemalloc takes a third less CPU time for
/// them and returns memory after bursts of new jobs (docs/history/measurements.md).
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time for passes in progress after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Reconciles RLJobs into inference, coordinator and trainer pods.
#[derive(Parser)]
#[command(name = "rljob-operator", version)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
struct Arguments {
    /// Image of roles without an image.
    #[arg(long, env = "RLJOB_IMAGE", default_value = DEFAULT_IMAGE)]
    image: String,
    /// Secrets with credentials of registries, separated by commas, for all pods of jobs. They must
    /// exist in the namespaces of jobs. Default: those of the pods' service account.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    image_pull_secrets: Vec<String>,
    /// File with the token key, at least 32 bytes. Default: a Secret in the operator's namespace,
    /// which is created if it does not exist.
    #[arg(long)]
    token_key_file: Option<PathBuf>,
    /// Namespace of the RLJobs to manage. Default: all namespaces.
    #[arg(long)]
    namespace: Option<String>,
    /// Accept hostPath volumes and hostPath storage in RLJobs. They give access to the files of
    /// nodes.
    #[arg(long)]
    allow_host_path: bool,
    /// Run the controller only while holding the Lease `rljob-operator` in the operator's
    /// namespace, so that several replicas can run.
    #[arg(long)]
    leader_elect: bool,
    /// Blocks of addresses that pods of jobs may reach outside of their job, separated by commas,
    /// on the ports of the servers that the job names. Default: all addresses and pods, except
    /// metadata services of clouds.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',', value_parser = cidr)]
    egress_cidrs: Vec<String>,
    /// Labels of namespaces whose pods may scrape the metrics of jobs, as `key=value`. Default: no
    /// pod may.
    #[arg(long, value_name = "LABELS", value_parser = labels)]
    metrics_namespace_selector: Option<Labels>,
    /// Labels of the pods in these namespaces that may. Default: all.
    #[arg(
        long,
        value_name = "LABELS",
        value_parser = labels,
        requires = "metrics_namespace_selector"
    )]
    metrics_pod_selector: Option<Labels>,
    /// Serve the metrics `rljob_job_*` of each job, up to 20 samples for a job. Alerts on jobs and
    /// dashboards need them; `false` is for very many jobs.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    job_metrics: bool,
    /// Let RLJobs with the label `kueue.x-k8s.io/queue-name` wait until Kueue admits them. Without
    /// it the label has no effect.
    #[arg(long)]
    kueue: bool,
    /// Schedulers of the gangs that RLJobs may have (`spec.scheduling.gang`), of `native`,
    /// `coscheduling` and `volcano`, separated by commas. Their PodGroup APIs must exist. Default
    /// none.
    #[arg(long, value_name = "NAMES")]
    gang_schedulers: Option<GangSchedulers>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value_t = (Ipv6Addr::UNSPECIFIED, METRICS_PORT).into())]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> ExitCode {
    let identity = Identity::default().with("role", "operator");
    rljob_logging::init(Format::Json, identity);
    match Box::pin(run(Arguments::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            rljob_logging::print_fatal(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut config = Config::infer()
        .await
        .context("failed to find an API server: no service account and no kubeconfig is usable")?;
    // A renewal of the Lease is tried again by the election, within its own time.
    config.default_retry = false;
    // The election and the token key need a client that works without leadership.
    let plain =
        Client::try_from(config.clone()).context("failed to create a client for the API server")?;
    check_crd(&plain, arguments.namespace.as_deref()).await?;
    let token_key = match &arguments.token_key_file {
        Some(path) => token_key::from_file(path)?,
        None => token_key::from_secret(&plain, plain.default_namespace()).await?,
    };
    let metrics = Metrics::new(arguments.job_metrics).context("failed to register metrics")?;
    let term = if arguments.leader_elect { Term::inactive() } else { Term::endless() };
    let client = requests::client(config, term.clone(), metrics.requests())
        .context("failed to create a client for the API server")?;
    let app = App::new(metrics.clone(), term.clone());
    let stop = stop_on_signal()?;
    let server = server::serve(arguments.listen, app.clone(), stop.clone());
    let gang_schedulers = arguments.gang_schedulers.unwrap_or_default();
    let leader = Leader {
        client,
        term: term.clone(),
        namespace: arguments.namespace,
        settings: Settings {
            image: arguments.image,
            image_pull_secrets: arguments.image_pull_secrets,
            namespace: plain.default_namespace().to_owned(),
            egress_cidrs: arguments.egress_cidrs,
            scrapers: arguments.metrics_namespace_selector.map(|namespace| Scrapers {
                namespace,
                pods: arguments.metrics_pod_selector.unwrap_or_default(),
            }),
            kueue: arguments.kueue,
            gang_schedulers,
        },
        policy: Policy::of_operator(arguments.allow_host_path).with_gangs(gang_schedulers),
        token_key,
        metrics,
        app,
    };
    let work = async {
        if arguments.leader_elect {
            Elector::new(plain, term)?.run(stop.clone(), || leader.lead(&stop)).await;
        } else {
            while !stop.is_cancelled() {
                leader.lead(&stop).await;
            }
        }
        anyhow::Ok(())
    };
    // If one ends, the other stops.
    let (served, worked) =
        tokio::join!(server.inspect(|_| stop.cancel()), work.inspect(|_| stop.cancel()));
    served
        .with_context(|| format!("failed to serve metrics and health on {}", arguments.listen))?;
    worked
}

/// Inputs of each term as leader.
struct Leader {
    client: Client,
    term: Term,
    namespace: Option<String>,
    settings: Settings,
    policy: Policy,
    token_key: TokenKey,
    metrics: Metrics,
    app: App,
}

impl Leader {
    fn cache(&self) -> Cache {
        let queued = self.settings.kueue.then_some(Kind::Workload);
        let gangs = self.settings.gang_schedulers.iter().map(Kind::PodGroup);
        Cache::new(&Kind::WATCHED.into_iter().chain(queued).chain(gangs).collect::<Vec<_>>())
    }

    /// Reconciles all jobs until `stop`, then finishes passes in progress. Ends earlier if the API
    /// server was restored to an older state.
    async fn lead(&self, stop: &CancellationToken) {
        let (pollers, triggers) = Pollers::new(self.term.clone());
        let health = Arc::default();
        let namespace = self.namespace.as_deref();
        let (controller, jobs) = controller::new(&self.client, namespace, &health);
        let context = Arc::new(Context {
            namespace: self.namespace.clone(),
            cache: Arc::new(self.cache()),
            health,
            memory: Memory::default(),
            reporter: Reporter {
                controller: MANAGED_BY.to_owned(),
                instance: std::env::var("HOSTNAME").ok(),
            },
            client: self.client.clone(),
            settings: self.settings.clone(),
            policy: self.policy,
            token_key: self.token_key.clone(),
            pollers,
            metrics: self.metrics.clone(),
        });
        let _guard = self.app.lead(jobs.clone(), context.clone());
        let (cache, health) = (context.cache.clone(), context.health.clone());
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            () = controller::run(controller, context, triggers, stop.clone()) => {}
            () = controller::restored(&self.client, namespace, &jobs, &cache, &health) => {}
            () = overdue => {
                tracing::warn!("passes in progress were cancelled after {} s", GRACE.as_secs());
            }
        }
    }
}

/// Fails early with instructions if the CRD is not installed.
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
    let mut signals = StopSignals::listen().context("failed to listen for SIGTERM")?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancel.cancel();
    });
    Ok(stop)
}
