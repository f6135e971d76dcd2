//! Run directory of one job, `RUNS/<namespace>/<name>`: lock, tokens, run configuration, and the
//! state that a cluster stores in the status of the RLJob.
//!
//! ```text
//!  RUNS/<namespace>/<name>/
//!    lock          held while `rljob run` runs
//!    state.json    epoch and outcome
//!    status.json   newest report of the coordinator
//!    run.json      run configuration, read by all processes
//!    inputs.json   paths and digests of the inputs
//!    tokens/       tokens, certificates and sglang.yaml, 0600 in 0700, new in every run
//!    logs/         one file per process
//!    tensorboard/  event files
//!    report.html   curves and samples
//!    …             journal, JSONL files, checkpoints and exports of coordinator and learners
//! ```

mod error;

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use rljob_crds::names::{
    RUN_CONFIG_FILE, SGLANG_CONFIG_FILE, TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER,
    TOKEN_OPERATOR,
};
use rljob_dashboard::AcceptedChanges;
use rljob_http::Role;
use rljob_protocol::run_config::{self, RunConfigError};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

pub use self::error::DirectoryError;
use crate::desired::Tokens;
use crate::desired::tokens::TokenKey;
use crate::sglang;

/// Held while `rljob run` runs.
pub const LOCK_FILE: &str = "lock";
/// File of the [`State`].
pub const STATE_FILE: &str = "state.json";
/// Newest report of the coordinator, for the dashboard.
pub const STATUS_FILE: &str = "status.json";
/// Paths and digests of the inputs.
pub const INPUTS_FILE: &str = "inputs.json";
/// Folder of logs, one file per process.
pub const LOGS_DIR: &str = "logs";

/// State that a cluster stores in the status of the RLJob.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// Epoch of the newest coordinator.
    pub epoch: u64,
    /// Whether the run reached its last step and exported the model.
    pub succeeded: bool,
    /// Cause of a failure, until the run is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Changes of the spec that starts accepted, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AcceptedChanges>,
}

/// A run directory, locked until the value is dropped.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Creates the folder if needed and locks it.
    ///
    /// # Errors
    /// [`DirectoryError::Locked`] if another process holds the lock.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        for folder in [path.to_owned(), path.join(LOGS_DIR)] {
            fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        }
        let file = path.join(LOCK_FILE);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&file)
            .map_err(failed("open", &file))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::Locked(path.to_owned())),
            Err(error) => Err(failed("lock", &file)(error.into())),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that no link leads out of the folder of runs.
    ///
    /// # Errors
    /// [`DirectoryError::Outside`].
    pub fn check_inside(&self, runs: &Path) -> Result<(), DirectoryError> {
        let canonical = |path: &Path| fs::canonicalize(path).map_err(failed("look up", path));
        if canonical(&self.path)?.starts_with(canonical(runs)?) {
            return Ok(());
        }
        let (directory, runs) = (self.path.clone(), runs.to_owned());
        Err(DirectoryError::Outside { directory, runs })
    }

    /// Path of the log of a process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.path.join(LOGS_DIR).join(format!("{process}.log"))
    }

    /// Path of a token.
    pub fn token(&self, name: &str) -> PathBuf {
        self.tokens().join(name)
    }

    /// Folder of tokens.
    pub fn tokens(&self) -> PathBuf {
        self.path.join("tokens")
    }

    /// Path of the run configuration.
    pub fn run_config(&self) -> PathBuf {
        self.path.join(RUN_CONFIG_FILE)
    }

    /// Configuration of the existing local run. That of a cluster has paths in its pods, and is not
    /// returned: a local run takes it over as a recreated job does.
    ///
    /// # Errors
    /// [`DirectoryError::RunConfig`].
    pub fn previous(&self) -> Result<Option<RunConfig>, DirectoryError> {
        // The state is recorded first.
        if !self.path.join(STATE_FILE).exists() {
            return Ok(None);
        }
        match run_config::read(&self.run_config()) {
            Ok((config, _)) => Ok(Some(config)),
            Err(RunConfigError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The recorded state; the default if none was recorded.
    ///
    /// # Errors
    /// [`DirectoryError::Malformed`].
    pub fn state(&self) -> Result<State, DirectoryError> {
        Ok(self.read(STATE_FILE)?.unwrap_or_default())
    }

    /// Writes the state and syncs it to disk.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn record(&self, state: &State) -> Result<(), DirectoryError> {
        self.write(STATE_FILE, state)
    }

    /// Writes the run configuration.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_run_config(&self, config: &RunConfig) -> Result<(), DirectoryError> {
        self.write(RUN_CONFIG_FILE, config)
    }

    /// Derives tokens and certificates of the run with this UID from a new key and writes those of
    /// its processes to files. Returns all.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn create_tokens(&self, uid: &str) -> Result<Tokens, DirectoryError> {
        let folder = self.tokens();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed("create", &folder))?;
        fs::set_permissions(&folder, Permissions::from_mode(0o700))
            .map_err(failed("protect", &folder))?;
        let key = random_hex().map_err(failed("generate a key for", &folder))?;
        let key = TokenKey::new(key.as_bytes())
            .map_err(|error| failed("generate a key for", &folder)(io::Error::other(error)))?;
        let tokens = Tokens::derive(&key, uid);
        let Tokens { operator, learner, engine_api, engine_admin, certificates } = &tokens;
        self.write_secret(TOKEN_OPERATOR, operator)?;
        self.write_secret(TOKEN_LEARNER, learner)?;
        self.write_secret(TOKEN_ENGINE_API, engine_api)?;
        self.write_secret(TOKEN_ENGINE_ADMIN, engine_admin)?;
        self.write_secret(SGLANG_CONFIG_FILE, &sglang::config_text(engine_api, engine_admin))?;
        for role in [Role::Coordinator, Role::Trainer, Role::Inference] {
            self.write_secret(role.file(), certificates.of(role))?;
        }
        Ok(tokens)
    }

    /// Generates a UID, for runs without an API server.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn generate_uid(&self) -> Result<String, DirectoryError> {
        let hex = random_hex().map_err(failed("generate a UID for", &self.path))?;
        let [a, b, c, d, e] =
            [0..8, 8..12, 13..16, 17..20, 20..32].map(|digits| hex.get(digits).unwrap_or_default());
        Ok(format!("{a}-{b}-4{c}-8{d}-{e}"))
    }

    fn write_secret(&self, name: &str, text: &str) -> Result<(), DirectoryError> {
        let path = self.token(name);
        let partial = path.with_extension("partial");
        let write = || {
            let mut file = OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&partial, &path)
        };
        write().map_err(failed("write", &path))
    }

    /// Reads a JSON file of the directory; none if it does not exist.
    ///
    /// # Errors
    /// [`DirectoryError::Malformed`].
    pub fn read<T: for<'de> Deserialize<'de>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, DirectoryError> {
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| DirectoryError::Malformed { path, message: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Writes a temporary file, syncs and renames it: atomic for readers and crashes.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), DirectoryError> {
        let path = self.path.join(name);
        let partial = self.path.join(format!("{name}.partial"));
        let write = || {
            let mut file = File::create(&partial)?;
            serde_json::to_writer_pretty(&mut file, value)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        };
        write().map_err(failed("write", &path))
    }
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_directory_cannot_be_opened() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join("default/sums");
        let first = RunDirectory::open(&path).unwrap();
        let message = RunDirectory::open(&path).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "another `rljob run` is using {}; wait for it, stop it, or choose another --dir",
                path.display()
            )
        );
        drop(first);
        assert!(RunDirectory::open(&path).is_ok());
    }

    #[test]
    fn a_link_out_of_the_folder_of_runs_is_rejected() {
        let (runs, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = runs.path().join("default/sums");
        RunDirectory::open(&path).unwrap().check_inside(runs.path()).unwrap();
        fs::create_dir(runs.path().join("lab")).unwrap();
        let link = runs.path().join("lab/sums");
        std::os::unix::fs::symlink(other.path(), &link).unwrap();
        let error = RunDirectory::open(&link).unwrap().check_inside(runs.path()).unwrap_err();
        let expected = format!("{} is a link to a folder outside", link.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    #[test]
    fn tokens_are_private_distinct_and_new_every_time() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let operator = directory.create_tokens("uid").unwrap().operator;
        assert_eq!(fs::read_to_string(directory.token(TOKEN_OPERATOR)).unwrap(), operator);
        assert_eq!(operator.len(), 64);
        assert_ne!(fs::read_to_string(directory.token(TOKEN_LEARNER)).unwrap(), operator);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&directory.tokens()), mode(&directory.token(TOKEN_OPERATOR))),
            (0o700, 0o600)
        );
        assert_ne!(directory.create_tokens("uid").unwrap().operator, operator);
    }

    #[test]
    fn state_is_read_back() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        assert_eq!(directory.state().unwrap(), State::default());
        let changes = AcceptedChanges { step: 2, fields: vec!["spec.training.seed".to_owned()] };
        let state = State { epoch: 3, succeeded: true, failure: None, changes: vec![changes] };
        directory.record(&state).unwrap();
        assert_eq!(directory.state().unwrap(), state);
    }
}
