//! The run directory of one job, `RUNS/<namespace>/<name>`: its lock, tokens, run configuration,
//! and the state that in a cluster stands in the RLJob's status.
//!
//! ```text
//!  RUNS/<namespace>/<name>/
//!    lock              held while `rljob run` runs                   state.json   epoch and outcome
//!    run.json          what every process reads                      tokens/      one file each, 0600 in 0700, drawn anew every run
//!    logs/             one file a process                            report.html  curves and samples
//!    tensorboard/      event files                                  inside `tokens`, sglang.yaml holds both engine tokens
//!    metrics.jsonl, evaluations.jsonl, samples.jsonl, journal.sqlite, checkpoints/, exports/, export/      the coordinator's and the learners'
//! ```

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
use rljob_protocol::run_config::{self, RunConfigError};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::sglang;

/// Held while `rljob run` runs.
pub const LOCK_FILE: &str = "lock";
/// The recorded [`State`].
pub const STATE_FILE: &str = "state.json";
/// One file a process.
pub const LOGS_DIR: &str = "logs";

/// What in a cluster stands in the RLJob's status.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// The newest coordinator's fencing number.
    pub epoch: u64,
    /// Whether the run reached its last step and exported the model.
    pub succeeded: bool,
    /// Why it failed, until it is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A run directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process runs in it.
    #[error("another `rljob run` is using {0}; wait for it, stop it, or choose another --dir")]
    Locked(PathBuf),
    /// It holds something else.
    #[error(
        "{directory} holds a run with another {what}; give the job another name, choose another --dir, or remove that folder"
    )]
    Other {
        /// The run directory.
        directory: PathBuf,
        /// What differs, as a path in the spec.
        what: &'static str,
    },
    /// The run configuration of an earlier run is unreadable.
    #[error(transparent)]
    RunConfig(#[from] RunConfigError),
    /// A file that is not what it should be.
    #[error("failed to read {path}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The file system refused.
    #[error("failed to {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A run directory, locked for as long as the value lives.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Makes the folder if needed and locks it.
    ///
    /// # Errors
    /// [`DirectoryError::Locked`] if another process has it.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        for folder in [path.to_owned(), path.join(LOGS_DIR)] {
            fs::create_dir_all(&folder).map_err(failed("make", &folder))?;
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

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log of a process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.path.join(LOGS_DIR).join(format!("{process}.log"))
    }

    /// A token's file.
    pub fn token(&self, name: &str) -> PathBuf {
        self.tokens().join(name)
    }

    /// The folder of tokens.
    pub fn tokens(&self) -> PathBuf {
        self.path.join("tokens")
    }

    /// The run configuration's file.
    pub fn run_config(&self) -> PathBuf {
        self.path.join(RUN_CONFIG_FILE)
    }

    /// The configuration of the run that is here already, if one is.
    ///
    /// # Errors
    /// [`DirectoryError::RunConfig`].
    pub fn previous(&self) -> Result<Option<RunConfig>, DirectoryError> {
        match run_config::read(&self.run_config()) {
            Ok((config, _)) => Ok(Some(config)),
            Err(RunConfigError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The recorded state; the default before the first.
    ///
    /// # Errors
    /// [`DirectoryError::Malformed`].
    pub fn state(&self) -> Result<State, DirectoryError> {
        Ok(self.read(STATE_FILE)?.unwrap_or_default())
    }

    /// Records the state, on disk before it returns.
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

    /// Draws every token anew; returns the operator's, which this process uses itself.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn draw_tokens(&self) -> Result<String, DirectoryError> {
        let folder = self.tokens();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed("make", &folder))?;
        fs::set_permissions(&folder, Permissions::from_mode(0o700))
            .map_err(failed("protect", &folder))?;
        self.draw_token(TOKEN_LEARNER)?;
        let (api, admin) =
            (self.draw_token(TOKEN_ENGINE_API)?, self.draw_token(TOKEN_ENGINE_ADMIN)?);
        self.write_secret(SGLANG_CONFIG_FILE, &sglang::config_text(&api, &admin))?;
        self.draw_token(TOKEN_OPERATOR)
    }

    /// A UID for a run that no API server named.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn draw_uid(&self) -> Result<String, DirectoryError> {
        let hex = random_hex().map_err(failed("draw a UID for", &self.path))?;
        Ok(format!(
            "{}-{}-4{}-8{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[13..16],
            &hex[17..20],
            &hex[20..32]
        ))
    }

    fn draw_token(&self, name: &str) -> Result<String, DirectoryError> {
        let path = self.token(name);
        let token = random_hex().map_err(failed("draw", &path))?;
        self.write_secret(name, &token)?;
        Ok(token)
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

    fn read<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>, DirectoryError> {
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| DirectoryError::Malformed { path, message: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Writes beside the file and renames, so that a reader sees the old or the new, and nothing
    /// else after a crash.
    fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), DirectoryError> {
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
    fn a_second_run_in_the_same_directory_is_refused_while_the_first_lives() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join("default/sums");
        let first = RunDirectory::open(&path).unwrap();
        let refused = RunDirectory::open(&path).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!(
                "another `rljob run` is using {}; wait for it, stop it, or choose another --dir",
                path.display()
            )
        );
        drop(first);
        assert!(RunDirectory::open(&path).is_ok());
    }

    #[test]
    fn tokens_are_secret_different_and_new_every_time() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let operator = directory.draw_tokens().unwrap();
        assert_eq!(fs::read_to_string(directory.token(TOKEN_OPERATOR)).unwrap(), operator);
        assert_eq!(operator.len(), 64);
        assert_ne!(fs::read_to_string(directory.token(TOKEN_LEARNER)).unwrap(), operator);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&directory.tokens()), mode(&directory.token(TOKEN_OPERATOR))),
            (0o700, 0o600)
        );
        assert_ne!(directory.draw_tokens().unwrap(), operator);
    }

    #[test]
    fn state_is_read_back() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        assert_eq!(directory.state().unwrap(), State::default());
        let state = State { epoch: 3, succeeded: true, failure: None };
        directory.record(&state).unwrap();
        assert_eq!(directory.state().unwrap(), state);
    }
}
