//! Whose run directory this is: written at the first start, compared at every later one, so that two jobs never share a journal.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const FILE: &str = "identity.json";

/// Whose a run directory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Namespace of the RLJob.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID when the directory was made. The same job made anew has another one and goes on here.
    pub uid: String,
    /// SHA-256 of what may not change: model and algorithm, as hexadecimal.
    pub spec_hash: String,
}

/// A run directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It belongs to another job.
    #[error(
        "the run directory {} belongs to {}/{} (uid {}) with {}: use another directory, or remove this one to start over",
        directory.display(), held.namespace, held.name, held.uid, if *same_name { "another model or algorithm" } else { "its own run" }
    )]
    Another {
        /// The directory.
        directory: PathBuf,
        /// Whose it is.
        held: Box<Identity>,
        /// Whether only the spec differs.
        same_name: bool,
    },
    /// The file cannot be read or written.
    #[error("failed to keep the run directory's identity in {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Identity {
    /// The identity of a configured run.
    pub fn of(config: &RunConfig) -> Result<Self, serde_json::Error> {
        let text = serde_json::to_string(&(&config.spec.model, &config.spec.algorithm))?;
        let spec_hash = Sha256::digest(text).iter().fold(String::new(), |hash, byte| hash + &format!("{byte:02x}"));
        Ok(Self { namespace: config.namespace.clone(), name: config.name.clone(), uid: config.uid.clone(), spec_hash })
    }

    /// Claims the directory, or checks that it is claimed by the same job. Makes it if it is not there.
    pub fn claim(&self, directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join(FILE);
        let failed = |source| IdentityError::File { path: path.clone(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let held: Self = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => return self.write(&path).map_err(failed),
            Err(error) => return Err(failed(error)),
        };
        let same_name = (&held.namespace, &held.name) == (&self.namespace, &self.name);
        if same_name && held.spec_hash == self.spec_hash {
            return Ok(());
        }
        Err(IdentityError::Another { directory: directory.to_owned(), held: Box::new(held), same_name })
    }

    /// Whole or not at all.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let written = path.with_extension("json.writing");
        std::fs::write(&written, serde_json::to_vec_pretty(self)?)?;
        std::fs::File::open(&written)?.sync_all()?;
        std::fs::rename(&written, path)
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;

    #[test]
    fn a_directory_is_claimed_once_and_kept_by_the_same_job_alone() {
        let directory = tempfile::tempdir().unwrap();
        let first = Identity { namespace: "default".to_owned(), name: "gsm8k".to_owned(), uid: "u1".to_owned(), spec_hash: "aa".to_owned() };
        first.claim(directory.path()).unwrap();
        Identity { uid: "u2".to_owned(), ..first.clone() }.claim(directory.path()).unwrap();
        let other = Identity { name: "other".to_owned(), ..first.clone() }.claim(directory.path()).unwrap_err();
        assert!(other.to_string().contains("belongs to default/gsm8k (uid u1) with its own run"), "{other}");
        let changed = Identity { spec_hash: "bb".to_owned(), ..first }.claim(directory.path()).unwrap_err();
        assert!(changed.to_string().contains("with another model or algorithm"), "{changed}");
    }
}
