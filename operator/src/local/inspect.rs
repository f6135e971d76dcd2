//! State of a run, read from its run directory without taking the lock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rljob_crds::names::{
    EVALUATIONS_FILE, METRICS_FILE, REASON_COMPLETED, REASON_FAILED, REASON_RUNNING,
    RUN_CONFIG_FILE,
};
use rljob_crds::{RLJobSpec, RunConfig, dataflow};
use rljob_dashboard::{RunInfo, records};
use rljob_protocol::run_config;
use rljob_protocol::status::{CoordinatorStatus, EvaluationMetrics, StepMetrics, UNKNOWN_STEPS};
use rustix::fs::{FlockOperation, flock};

use super::contents::Inputs;
use super::directory::{INPUTS_FILE, LOCK_FILE, STATE_FILE, State};
use super::status_file;

/// A run and its newest records.
#[derive(Clone, Debug)]
pub struct Run {
    pub directory: PathBuf,
    pub config: RunConfig,
    pub state: State,
    /// Whether `rljob run` has run it. The outcome of a run of a cluster is in its RLJob.
    pub is_local: bool,
    /// Whether a `rljob run` holds the lock.
    pub running: bool,
    /// Metrics of the newest step.
    pub metrics: Option<StepMetrics>,
    pub evaluation: Option<EvaluationMetrics>,
    /// Newest report of the coordinator, which may be outdated.
    pub report: Option<CoordinatorStatus>,
}

impl Run {
    /// Reads a run directory.
    ///
    /// # Errors
    /// A file is missing or malformed.
    pub fn read(directory: &Path) -> anyhow::Result<Self> {
        let file = |name: &str| directory.join(name);
        let is_local = file(STATE_FILE).exists();
        let state = if is_local { read_json(&file(STATE_FILE))? } else { State::default() };
        Ok(Self {
            directory: directory.to_owned(),
            config: run_config::read(&file(RUN_CONFIG_FILE))?.0,
            state,
            is_local,
            running: is_locked(&file(LOCK_FILE))?,
            metrics: records::newest(&file(METRICS_FILE))?,
            evaluation: records::newest(&file(EVALUATIONS_FILE))?,
            report: status_file::read(directory),
        })
    }

    /// Status, named as in the STATUS column of RLJobs where one matches.
    pub fn status(&self) -> &'static str {
        match (self.running, self.state.succeeded, &self.state.failure) {
            (true, ..) => REASON_RUNNING,
            _ if !self.is_local => "Unknown",
            (false, true, _) => REASON_COMPLETED,
            (false, false, Some(_)) => REASON_FAILED,
            (false, false, None) => "Stopped",
        }
    }

    /// Steps of the run; those of epochs once a coordinator has reported them.
    pub fn total_steps(&self) -> Option<u32> {
        let reported = || Some(self.report.as_ref()?.total_steps);
        let steps = self.config.spec.training.known_steps().or_else(reported);
        steps.filter(|steps| *steps != UNKNOWN_STEPS)
    }

    /// Facts for the dashboard and the report.
    ///
    /// # Errors
    /// The spec cannot be written as YAML.
    pub fn info(&self) -> anyhow::Result<RunInfo> {
        let spec = &self.config.spec;
        // Programs of a local run are on its machine.
        let verifiers = spec.verifiers.clone().filter(|_| !self.is_local);
        let planned = RLJobSpec { verifiers, ..spec.clone() };
        Ok(RunInfo {
            name: format!("{}/{}", self.config.namespace, self.config.name),
            status: self.status().to_owned(),
            is_running: self.running,
            cause: self.state.failure.clone().filter(|_| !self.running),
            total_steps: self.total_steps().unwrap_or_default(),
            spec: serde_yaml::to_string(spec).context("failed to write the spec as YAML")?,
            plan: dataflow::plan(&planned).ok(),
            coordinator: self.report.clone().filter(|_| self.running),
            memory: self.report.as_ref().and_then(|report| report.memory.clone()),
            incidents: Vec::new(),
            changes: self.state.changes.clone(),
        })
    }
}

/// The run directory at `path`, or all run directories in the folder `path` or in the namespaces in
/// it, sorted by name.
///
/// # Errors
/// The folder cannot be read, or has no run directory.
pub fn find(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_run = |path: &PathBuf| path.join(RUN_CONFIG_FILE).is_file();
    if is_run(&path.to_owned()) {
        return Ok(vec![path.to_owned()]);
    }
    let entries = |folder: fs::ReadDir| folder.flatten().map(|entry| entry.path());
    let folder = fs::read_dir(path)
        .with_context(|| format!("failed to read {} as a folder of runs", path.display()))?;
    let folders: Vec<PathBuf> = entries(folder).collect();
    let in_folders = folders.iter().filter_map(|folder| fs::read_dir(folder).ok());
    let mut found: Vec<PathBuf> = in_folders.flat_map(entries).filter(is_run).collect();
    found.extend(folders.iter().filter(|folder| is_run(folder)).cloned());
    found.sort();
    if found.is_empty() {
        bail!(
            "{} contains no run: neither {RUN_CONFIG_FILE} nor <name>/{RUN_CONFIG_FILE} nor \
                <namespace>/<name>/{RUN_CONFIG_FILE} exists in it",
            path.display()
        );
    }
    Ok(found)
}

/// The run directory at `path`, or the only one in the folder `path`.
///
/// # Errors
/// There is no run directory, or several.
pub fn find_one(path: &Path) -> anyhow::Result<PathBuf> {
    let mut found = find(path)?;
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        (last, _) => {
            let runs = found.iter().chain(&last).map(|run| run.display().to_string());
            let runs: Vec<String> = runs.collect();
            bail!("{} contains several runs: name one of {}", path.display(), runs.join(", "))
        }
    }
}

/// Whether a `rljob run` holds the lock.
///
/// # Errors
/// The file cannot be opened.
pub fn is_locked(lock: &Path) -> io::Result<bool> {
    let file = match File::open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// SHA-256 of the inputs of a local run, by the fields that name them. Empty for a run of a
/// cluster.
///
/// # Errors
/// The record is malformed.
pub fn contents(directory: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let path = directory.join(INPUTS_FILE);
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let inputs: Inputs = read_json(&path)?;
    Ok(inputs.contents.into_iter().map(|(field, input)| (field, input.sha256)).collect())
}

fn read_json<T: for<'de> serde::Deserialize<'de>>(path: &Path) -> anyhow::Result<T> {
    let text =
        fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::super::directory::{RunDirectory, State};
    use crate::desired::run_config;
    use crate::validate::test_support::validated;
    use std::path::{Path, PathBuf};

    /// A local run directory of the minimal job with one step.
    pub fn run_directory(runs: &Path) -> RunDirectory {
        let directory = RunDirectory::open(&cluster_run_directory(runs)).unwrap();
        directory.record(&State::default()).unwrap();
        std::fs::write(directory.log("coordinator"), "one\ntwo\n").unwrap();
        directory
    }

    /// The same, with the files that a coordinator in a cluster writes only.
    pub fn cluster_run_directory(runs: &Path) -> PathBuf {
        let directory = runs.join("lab/sums");
        std::fs::create_dir_all(&directory).unwrap();
        let config = serde_json::to_vec_pretty(&run_config(&validated())).unwrap();
        std::fs::write(directory.join(super::RUN_CONFIG_FILE), config).unwrap();
        let metrics = super::StepMetrics::with_scalars(7, [("reward", 0.5)]);
        let line = serde_json::to_string(&metrics).unwrap() + "\n";
        std::fs::write(directory.join(super::METRICS_FILE), line).unwrap();
        directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_running_while_locked_then_the_recorded_outcome() {
        let runs = tempfile::tempdir().unwrap();
        let directory = test_support::run_directory(runs.path());
        assert_eq!(find(runs.path()).unwrap(), [directory.path()]);
        let status = || Run::read(&runs.path().join("lab/sums")).unwrap().status();
        assert_eq!(status(), "Running");
        directory
            .record(&State { failure: Some("out of memory".to_owned()), ..State::default() })
            .unwrap();
        assert_eq!(status(), "Running", "restarted");
        drop(directory);
        assert_eq!(status(), "Failed");
        let run = Run::read(&runs.path().join("lab/sums")).unwrap();
        assert_eq!(
            (run.info().unwrap().cause, run.metrics.unwrap().step),
            (Some("out of memory".to_owned()), 7)
        );
    }

    #[test]
    fn a_folder_of_several_runs_is_answered_with_their_directories() {
        let runs = tempfile::tempdir().unwrap();
        let directory = test_support::run_directory(runs.path());
        assert_eq!(find_one(runs.path()).unwrap(), directory.path());
        assert_eq!(find_one(directory.path()).unwrap(), directory.path());
        assert_eq!(find_one(&runs.path().join("lab")).unwrap(), directory.path());
        let other = runs.path().join("lab/words");
        fs::create_dir(&other).unwrap();
        fs::copy(directory.path().join(RUN_CONFIG_FILE), other.join(RUN_CONFIG_FILE)).unwrap();
        let [folder, sums, words] = [runs.path(), directory.path(), &other].map(Path::display);
        let message = format!("{folder} contains several runs: name one of {sums}, {words}");
        assert_eq!(find_one(runs.path()).unwrap_err().to_string(), message);
    }

    #[test]
    fn error_of_a_folder_without_a_run_names_the_expected_files() {
        let folder = tempfile::tempdir().unwrap();
        let message = format!(
            "{} contains no run: neither run.json nor <name>/run.json nor \
                <namespace>/<name>/run.json exists in it",
            folder.path().display()
        );
        assert_eq!(find(folder.path()).unwrap_err().to_string(), message);
        let missing = folder.path().join("missing");
        let message = format!(
            "failed to read {} as a folder of runs: No such file or directory (os error 2)",
            missing.display()
        );
        assert_eq!(format!("{:#}", find(&missing).unwrap_err()), message);
    }
}
