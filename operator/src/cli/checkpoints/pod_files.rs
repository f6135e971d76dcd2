//! Programs in the container of an RLJob's coordinator, where the storage of runs is mounted, and
//! files of a checkpoint that one of them reads, as `kubectl cp` reads files. The API server
//! decides who may run a program there.

use std::pin::Pin;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use rljob_crds::names::{CONFIG_MOUNT, RUN_CONFIG_FILE};
use rljob_protocol::version::Version;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::JoinHandle;

use crate::cli::connection::Connection;
use crate::desired::{PROGRAMS, Role};

/// Bytes of output that wait for this program.
const BUFFER: usize = 1 << 20;
/// Most bytes of the output of [`PodProgram::run`].
const MAX_OUTPUT: u64 = 1 << 20;

/// The program `rljob-coordinator` in the container of an RLJob's coordinator.
pub struct PodProgram {
    pods: Api<Pod>,
    pod: String,
}

/// Files of a checkpoint in a pod.
pub struct PodFiles {
    program: PodProgram,
    version: Version,
}

/// A file that is read. Its end proves nothing: [`Opened::finish`] reports errors of a pod.
pub struct Opened {
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    process: Option<Process>,
}

struct Process {
    attached: AttachedProcess,
    errors: JoinHandle<String>,
}

impl PodProgram {
    pub fn new(connection: &Connection, job: &str) -> Self {
        let pod = format!("{job}-{}-0", Role::Coordinator.as_str());
        Self { pods: connection.api(), pod }
    }

    /// Finds out whether the pod can be reached.
    ///
    /// # Errors
    /// It does not exist, a permission is missing, or its container does not run.
    pub async fn check(&self, connection: &Connection) -> anyhow::Result<()> {
        let action = format!("run a program in pod {}", self.pod);
        let attached = self.start(&["--version".to_owned()]).await;
        attached.map_err(|error| connection.failed(&action, error))?.abort();
        Ok(())
    }

    /// Runs the program with these arguments on the job's run; returns its output.
    ///
    /// # Errors
    /// The program cannot be started, or fails; what it has written is in the error.
    pub async fn run(&self, arguments: &[String]) -> anyhow::Result<String> {
        let mut opened = self.open(arguments).await?;
        let mut output = Vec::new();
        let mut reader = opened.reader.as_mut().take(MAX_OUTPUT);
        reader.read_to_end(&mut output).await.context("the connection to the pod broke")?;
        let output = String::from_utf8_lossy(&output).into_owned();
        match opened.finish().await {
            Ok(()) => Ok(output),
            Err(error) => bail!("{output}{error:#}"),
        }
    }

    /// Starts the program with these arguments on the job's run, and opens its output.
    async fn open(&self, arguments: &[String]) -> anyhow::Result<Opened> {
        let config = format!("--config={CONFIG_MOUNT}/{RUN_CONFIG_FILE}");
        let arguments: Vec<String> =
            std::iter::once(config).chain(arguments.iter().cloned()).collect();
        let failed = || format!("failed to run a program in pod {}", self.pod);
        let mut attached = self.start(&arguments).await.with_context(failed)?;
        let (Some(output), Some(mut errors)) = (attached.stdout(), attached.stderr()) else {
            bail!("{}: the API server returns no output", failed())
        };
        let errors = tokio::spawn(async move {
            let mut bytes = Vec::new();
            // What was read until then is the message.
            let _ = errors.read_to_end(&mut bytes).await;
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let process = Some(Process { attached, errors });
        Ok(Opened { reader: Box::pin(output), process })
    }

    async fn start(&self, arguments: &[String]) -> kube::Result<AttachedProcess> {
        let parameters = AttachParams::default()
            .container(Role::Coordinator.container())
            .max_stdout_buf_size(BUFFER);
        let command = std::iter::once(format!("{PROGRAMS}/rljob-coordinator"));
        self.pods.exec(&self.pod, command.chain(arguments.iter().cloned()), &parameters).await
    }
}

impl PodFiles {
    pub fn new(connection: &Connection, job: &str, version: Version) -> Self {
        Self { program: PodProgram::new(connection, job), version }
    }

    /// Finds out whether the pod can be reached.
    ///
    /// # Errors
    /// It does not exist, a permission is missing, or its container does not run.
    pub async fn check(&self, connection: &Connection) -> anyhow::Result<()> {
        self.program.check(connection).await
    }

    /// Opens a file of the checkpoint.
    ///
    /// # Errors
    /// The program cannot be started.
    pub async fn open(&self, name: &str) -> anyhow::Result<Opened> {
        self.program.open(&[format!("--read-file={}/{name}", self.version)]).await
    }
}

impl Opened {
    pub fn file(file: File) -> Self {
        Self { reader: Box::pin(file), process: None }
    }

    /// Waits for the program that wrote the file.
    ///
    /// # Errors
    /// It failed, or the connection broke.
    pub async fn finish(self) -> anyhow::Result<()> {
        let Some(Process { mut attached, errors }) = self.process else { return Ok(()) };
        let status = match attached.take_status() {
            Some(status) => status.await,
            None => None,
        };
        let status = status.context("the connection to the pod broke")?;
        if status.status.as_deref() == Some("Success") {
            return Ok(());
        }
        let errors = errors.await.context("failed to read the errors of the program")?;
        let line = errors.lines().last().map(|line| line.trim_start_matches("error: ").to_owned());
        bail!("{}", line.or(status.message).unwrap_or_default())
    }
}
