//! Connection to a cluster as kubectl chooses it: kubeconfig, context and namespace; errors of the
//! API server for people.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rljob_crds::RLJob;

/// Selects the cluster and the namespace, as for kubectl.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionArgs {
    /// Kubeconfig file. Default: the files in KUBECONFIG, else `~/.kube/config`, else the service
    /// account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long)]
    pub context: Option<String>,
    /// Namespace of the RLJobs. Default: that of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
}

/// A local run, or an RLJob of a cluster.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PlaceArgs {
    /// Use RLJobs of a cluster: the argument is the name of one.
    #[arg(long)]
    pub cluster: bool,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

impl PlaceArgs {
    /// The RLJob that `target` names, or the folder of local runs, by default `runs`.
    ///
    /// # Errors
    /// There are options of a cluster without `--cluster`, the name of the RLJob is missing, or
    /// there is no usable kubeconfig.
    pub async fn subject<'a>(&self, target: Option<&'a str>) -> anyhow::Result<Subject<'a>> {
        self.check()?;
        if !self.cluster {
            self.check_folder(target)?;
            return Ok(Subject::Runs(Path::new(target.unwrap_or("runs"))));
        }
        let name = target.context("the name of an RLJob is missing")?;
        Ok(Subject::RLJob(Connection::open(&self.connection).await?, name))
    }

    /// Rejects options of a cluster without `--cluster`.
    ///
    /// # Errors
    /// There are such options.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.cluster || self.connection == ConnectionArgs::default(),
            "--kubeconfig, --context and --namespace need --cluster: local runs have none"
        );
        Ok(())
    }

    /// Rejects the name of an RLJob without `--cluster`: a folder that does not exist, without `/`.
    ///
    /// # Errors
    /// It is such a name.
    pub fn check_folder(&self, target: Option<&str>) -> anyhow::Result<()> {
        let Some(name) = target.filter(|name| !self.cluster && !name.contains('/')) else {
            return Ok(());
        };
        ensure!(
            Path::new(name).exists(),
            "failed to read {name} as a folder of runs: it does not exist; for an RLJob of a \
             cluster: --cluster"
        );
        Ok(())
    }
}

/// What a command is about.
pub enum Subject<'a> {
    /// An RLJob of this name.
    RLJob(Connection, &'a str),
    /// A run directory, or a folder of run directories.
    Runs(&'a Path),
}

/// A cluster and the selected namespace.
pub struct Connection {
    pub client: Client,
    pub namespace: String,
}

impl Connection {
    /// Reads the kubeconfig. Sends no request.
    ///
    /// # Errors
    /// There is no usable kubeconfig, or it lacks the context.
    pub async fn open(arguments: &ConnectionArgs) -> anyhow::Result<Self> {
        let mut config = config(arguments).await?;
        // A command fails at once. People repeat it.
        config.default_retry = false;
        let namespace =
            arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .context("failed to create a client for the cluster of the kubeconfig")?;
        Ok(Self { client, namespace })
    }

    /// API of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Gets an RLJob.
    ///
    /// # Errors
    /// It does not exist, or the request fails.
    pub async fn job(&self, name: &str) -> anyhow::Result<RLJob> {
        let job = self.api().get(name).await;
        job.map_err(|error| self.failed(&format!("get RLJob {name}"), error))
    }

    /// The error of a request: what failed, and what is missing.
    pub fn failed(&self, action: &str, error: kube::Error) -> anyhow::Error {
        let place = format!("failed to {action} in namespace {}", self.namespace);
        let kube::Error::Api(status) = error else {
            return anyhow::Error::new(error)
                .context(format!("{place}: the cluster does not answer"));
        };
        let message = &status.message;
        match status.code {
            401 => anyhow!("{place}: the cluster rejects the credentials of the kubeconfig"),
            403 => anyhow!("{place}: a permission is missing: {message}"),
            404 if status.details.as_ref().is_none_or(|details| details.name.is_empty()) => {
                anyhow!("{place}: the cluster has no RLJobs: install the operator and its CRD")
            }
            404 => anyhow!("{place}: it does not exist"),
            _ => anyhow!("{place}: {message}"),
        }
    }
}

async fn config(arguments: &ConnectionArgs) -> anyhow::Result<Config> {
    let options =
        KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &arguments.kubeconfig {
        let failed = || format!("failed to use the kubeconfig {}", path.display());
        let file = Kubeconfig::read_from(path).with_context(failed)?;
        return Config::from_custom_kubeconfig(file, &options).await.with_context(failed);
    }
    if let Some(context) = &arguments.context {
        return Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("failed to use the context {context} of the kubeconfig"));
    }
    Config::infer()
        .await
        .context("failed to find a cluster: set KUBECONFIG, or pass --kubeconfig FILE")
}
