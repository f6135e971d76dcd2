//! Logs of an RLJob's pods. Without `--follow`, one pod after the other; with it, all at once, also
//! of pods and containers that start later, until the run has ended.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{bail, ensure};
use futures::{AsyncBufRead, AsyncBufReadExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};
use rljob_crds::RLJob;
use rljob_crds::names::{LABEL_JOB, LABEL_ROLE};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::job_view::outcome;
use super::log_lines::{LineFormat, LogLines};
use crate::desired::Role;

/// Interval of lists of pods with `--follow`.
const POLL: Duration = Duration::from_secs(2);
/// Lines between the streams and the output.
const QUEUE: usize = 1_024;

/// Logs to print.
#[derive(Debug)]
pub struct Selection<'a> {
    /// Name of the RLJob.
    pub job: &'a str,
    /// Role (`trainer`), pod without the job (`trainer-0`), or pod.
    pub part: Option<&'a str>,
    /// Container. Default: the main one of the role.
    pub container: Option<&'a str>,
    /// Whether the containers before their last restart are meant.
    pub previous: bool,
    pub tail: Option<usize>,
    /// Format of the lines; those of several pods have the name of their pod.
    pub lines: LineFormat,
}

impl Selection<'_> {
    fn includes(&self, pod: &Pod) -> bool {
        let name = pod.name_any();
        let short = name.strip_prefix(self.job).and_then(|name| name.strip_prefix('-'));
        let role = pod.labels().get(LABEL_ROLE).map(String::as_str);
        self.part.is_none_or(|part| Some(part) == role || Some(part) == short || part == name)
    }

    fn container(&self, pod: &Pod) -> String {
        let role = pod.labels().get(LABEL_ROLE).and_then(|role| Role::parse(role));
        let main = role.map(Role::container).unwrap_or_default();
        self.container.unwrap_or(main).to_owned()
    }

    fn parameters(&self, pod: &Pod) -> LogParams {
        LogParams {
            container: Some(self.container(pod)),
            previous: self.previous,
            tail_lines: self.tail.and_then(|lines| i64::try_from(lines).ok()),
            ..LogParams::default()
        }
    }

    /// The selected pods, in the order of names, and the names of all pods of the job.
    async fn pods(&self, connection: &Connection) -> anyhow::Result<(Vec<Pod>, Vec<String>)> {
        let own = ListParams::default().labels(&format!("{LABEL_JOB}={}", self.job));
        let pods = connection.api::<Pod>().list(&own).await;
        let all = pods.map_err(|error| connection.failed("list pods", error))?.items;
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        Ok((all.into_iter().filter(|pod| self.includes(pod)).collect(), names))
    }

    /// Checks that a pod may be selected later: `part` is a role or may be a pod's name.
    fn check_part(&self) -> anyhow::Result<()> {
        let Some(part) = self.part else { return Ok(()) };
        let roles = Role::ALL.map(Role::as_str);
        let pod = part.strip_prefix(self.job).and_then(|rest| rest.strip_prefix('-'));
        let pod = pod.unwrap_or(part);
        let is_pod_of = |role: &&str| {
            pod.strip_prefix(role).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        ensure!(
            roles.iter().any(is_pod_of),
            "no pod or role `{part}`; roles are {}",
            roles.join(", ")
        );
        Ok(())
    }
}

/// Prints the present logs.
///
/// # Errors
/// There is no such job or pod, or a log cannot be read. Other logs are printed.
pub async fn print(
    connection: &Connection,
    selection: &Selection<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let job = connection.job(selection.job).await?;
    let (pods, names) = selection.pods(connection).await?;
    if let (true, false, Some(part)) = (pods.is_empty(), names.is_empty(), selection.part) {
        bail!("no pod or role `{part}`; found {}", names.join(", "));
    }
    let (name, ended) = (selection.job, outcome(&job).map(|outcome| outcome.reason.as_str()));
    ensure!(
        !pods.is_empty(),
        "RLJob {name} has no pods ({}): their logs are lost unless the cluster collects them",
        ended.unwrap_or(if job.spec.suspend { "suspended" } else { "not started" })
    );
    let (api, mut failures) = (connection.api::<Pod>(), Vec::new());
    for pod in &pods {
        let (name, parameters) = (pod.name_any(), selection.parameters(pod));
        let format = LineFormat { has_pod: pods.len() > 1, ..selection.lines };
        let mut printed = LogLines::new(format, name.clone());
        let stream = match api.log_stream(&name, &parameters).await {
            Ok(stream) => stream,
            Err(error) => {
                let error = connection.failed(&format!("read the log of pod {name}"), error);
                failures.push(format!("{error:#}"));
                continue;
            }
        };
        let mut lines = Lines::new(stream);
        loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    if let Some(line) = printed.next(&line) {
                        writeln!(out, "{line}")?;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    failures.push(format!("failed to read the log of pod {name}: {error}"));
                    break;
                }
            }
        }
    }
    out.flush()?;
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// A container between two starts.
type ContainerId = String;

/// Prints logs until the run has ended and its containers have exited.
///
/// # Errors
/// There is no such job or pod, or a request fails.
pub async fn follow(
    connection: &Connection,
    selection: &Selection<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    connection.job(selection.job).await?;
    selection.check_part()?;
    let mut follower = Follower::new(connection.api());
    let (sender, mut lines) = mpsc::channel(QUEUE);
    let mut poll = tokio::time::interval(POLL);
    loop {
        tokio::select! {
            biased;
            Some(line) = lines.recv() => {
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            Some(ended) = follower.streams.join_next() => follower.end(ended?),
            _ = poll.tick() => {
                // Read before the pods, so that the last container is not missed.
                let has_ended = has_ended(connection, selection.job).await?;
                let (pods, _) = selection.pods(connection).await?;
                let is_new = follower.start(selection, &pods, &sender);
                if has_ended && !is_new && follower.streams.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether the run has ended, or the job is deleted.
async fn has_ended(connection: &Connection, name: &str) -> anyhow::Result<bool> {
    let job = connection.api::<RLJob>().get_opt(name).await;
    let job = job.map_err(|error| connection.failed(&format!("get RLJob {name}"), error))?;
    Ok(job.as_ref().is_none_or(|job| outcome(job).is_some()))
}

/// Streams of containers.
struct Follower {
    api: Api<Pod>,
    streams: JoinSet<ContainerId>,
    /// Containers whose log is or was read; with the time at which a stream broke off.
    known: BTreeMap<ContainerId, Option<Timestamp>>,
    is_first: bool,
}

impl Follower {
    fn new(api: Api<Pod>) -> Self {
        Self { api, streams: JoinSet::new(), known: BTreeMap::new(), is_first: true }
    }

    /// A stream ends with its container, or breaks off.
    fn end(&mut self, id: ContainerId) {
        self.known.insert(id, Some(Timestamp::now()));
    }

    fn is_new(&self, id: &ContainerId) -> bool {
        !self.known.contains_key(id)
    }

    /// Starts streams of new containers, and of running ones whose stream broke off. Returns
    /// whether there are any.
    fn start(
        &mut self,
        selection: &Selection<'_>,
        pods: &[Pod],
        sender: &mpsc::Sender<String>,
    ) -> bool {
        let before = self.streams.len();
        for pod in pods {
            let name = selection.container(pod);
            let Some(container) = Container::read(pod, &name) else { continue };
            let since_time = match self.known.get(&container.id) {
                None => None,
                Some(Some(since)) if container.is_running => Some(*since),
                Some(_) => continue,
            };
            // A container may start and exit between two lists.
            let missed = container.previous.filter(|id| !self.is_first && self.is_new(id));
            let parameters = LogParams {
                follow: true,
                since_time,
                // All lines of a container that started later.
                tail_lines: selection.parameters(pod).tail_lines.filter(|_| self.is_first),
                ..selection.parameters(pod)
            };
            self.known.insert(container.id.clone(), None);
            self.known.extend(missed.clone().map(|id| (id, None)));
            let (api, name, sender) = (self.api.clone(), pod.name_any(), sender.clone());
            let format = LineFormat { has_pod: true, ..selection.lines };
            self.streams.spawn(async move {
                if missed.is_some() {
                    let (follow, previous) = (false, true);
                    let parameters = LogParams { follow, previous, ..parameters.clone() };
                    stream(&api, &name, &parameters, &sender, format).await;
                }
                stream(&api, &name, &parameters, &sender, format).await;
                container.id
            });
        }
        self.is_first &= pods.is_empty();
        self.streams.len() > before
    }
}

/// A container that has started.
struct Container {
    id: ContainerId,
    is_running: bool,
    /// The container before the last restart.
    previous: Option<ContainerId>,
}

impl Container {
    fn read(pod: &Pod, name: &str) -> Option<Self> {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let status = statuses.iter().find(|status| status.name == name)?;
        let state = status.state.as_ref();
        let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        Some(Self {
            id: status.container_id.clone()?,
            is_running: state.is_some_and(|state| state.running.is_some())
                && pod.metadata.deletion_timestamp.is_none(),
            previous: last.and_then(|last| last.container_id.clone()),
        })
    }
}

async fn stream(
    api: &Api<Pod>,
    pod: &str,
    parameters: &LogParams,
    sender: &mpsc::Sender<String>,
    format: LineFormat,
) {
    // A pod may be deleted meanwhile, and a connection may break: the next list tells.
    let Ok(stream) = api.log_stream(pod, parameters).await else { return };
    let (mut lines, mut printed) = (Lines::new(stream), LogLines::new(format, pod.to_owned()));
    while let Ok(Some(line)) = lines.next().await {
        let Some(line) = printed.next(&line) else { continue };
        if sender.send(line).await.is_err() {
            break;
        }
    }
}

/// Lines of a log, with replacement characters for bytes that are not UTF-8.
struct Lines<R>(R);

impl<R: AsyncBufRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self(reader)
    }

    async fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if self.0.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }
}
