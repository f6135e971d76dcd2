//! Files of complete checkpoints, for copies of them: `kubectl rljob checkpoints copy` runs the
//! coordinator's program in its container for each file.

use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use rljob_crds::RunConfig;
use rljob_protocol::checkpoint::{MANIFEST_FILE, Manifest, POSITION_FILE};
use rljob_protocol::version::Version;
use rljob_storage::{MAX_MANIFEST, RunStore};

use super::checkpoints;

/// Name of a file of a checkpoint, `step-N.attempt-K/FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    version: Version,
    name: String,
}

impl FromStr for CheckpointFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('/').and_then(|(version, name)| {
            let is_name = Path::new(name).file_name().is_some_and(|last| last == name);
            Some(Self { version: version.parse().ok().filter(|_| is_name)?, name: name.to_owned() })
        });
        parsed.ok_or_else(|| "is not step-N.attempt-K/FILE".to_owned())
    }
}

impl CheckpointFile {
    /// Writes the file; `null` for a data position that the run did not record. Blocks.
    ///
    /// # Errors
    /// The run is in a bucket, the checkpoint is not complete, the file is not part of it, or it
    /// cannot be read or written.
    pub fn write(&self, config: &RunConfig, output: &mut impl Write) -> anyhow::Result<()> {
        let Self { version, name } = self;
        ensure!(config.bucket.is_none(), "the run is in a bucket: use a client of the bucket");
        let run_store = RunStore::Folder(config.run_directory.clone());
        let file = |name: &str| format!("{}/{name}", checkpoints::folder(*version));
        let Some(manifest) = run_store.read(&file(MANIFEST_FILE), MAX_MANIFEST)? else {
            bail!(
                "{} is not a complete checkpoint",
                run_store.place(&checkpoints::folder(*version))
            )
        };
        let manifest: Manifest = serde_json::from_slice(&manifest).with_context(|| {
            format!("failed to parse {}", run_store.place(&file(MANIFEST_FILE)))
        })?;
        let is_part = [MANIFEST_FILE, POSITION_FILE].contains(&name.as_str())
            || manifest.files.iter().any(|entry| entry.name == *name);
        ensure!(is_part, "{name} is not a file of checkpoint {version}");
        match run_store.open(&file(name), u64::MAX)? {
            Some(mut source) => {
                std::io::copy(&mut source, output)
                    .with_context(|| format!("failed to read {}", run_store.place(&file(name))))?;
            }
            None if name == POSITION_FILE => output.write_all(b"null")?,
            None => bail!("{} does not exist", run_store.place(&file(name))),
        }
        Ok(output.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_checkpoint_and_has_no_folder() {
        let file: CheckpointFile = "step-2.attempt-1/manifest.json".parse().unwrap();
        assert_eq!(file.version, Version { step: 2, attempt: 1 });
        assert_eq!(file.name, "manifest.json");
        for text in [
            "step-2/a",
            "step-2.attempt-1",
            "step-2.attempt-1/",
            "step-2.attempt-1/a/b",
            "step-2.attempt-1/..",
            "../step-2.attempt-1/a",
        ] {
            assert!(text.parse::<CheckpointFile>().is_err(), "{text}");
        }
    }
}
