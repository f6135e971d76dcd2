//! Verification of a run's complete checkpoints beside the run, which may be active. It only reads.

use std::fmt::Write as _;

use rljob_crds::RunConfig;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;

use crate::persistence::checkpoints;

/// Compares the files of complete checkpoints, or of those of a step, with their manifests: sizes
/// and SHA-256. Returns a line for each, oldest first, and whether all match. Blocks.
///
/// # Errors
/// The checkpoints cannot be listed, or the server of a bucket is unavailable.
pub fn verify(config: &RunConfig, step: Option<u32>) -> anyhow::Result<(String, bool)> {
    verify_in(&RunStore::of(config)?, step)
}

fn verify_in(run_store: &RunStore, step: Option<u32>) -> anyhow::Result<(String, bool)> {
    let (mut text, mut all_match) = (String::new(), true);
    let is_chosen = |version: &Version| step.is_none_or(|step| version.step == step);
    for version in checkpoints::complete(run_store)?.into_iter().filter(is_chosen) {
        let line = match checkpoints::compared(run_store, version)? {
            Ok(manifest) => {
                let bytes =
                    manifest.files.iter().fold(0, |sum, file| file.size.saturating_add(sum));
                format!("{} files of {bytes} bytes match the manifest", manifest.files.len())
            }
            // The run has pruned it meanwhile.
            Err(_) if !checkpoints::complete(run_store)?.contains(&version) => continue,
            Err(difference) => {
                all_match = false;
                difference
            }
        };
        let _ = writeln!(text, "{version}: {line}");
    }
    Ok((text, all_match))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn complete_checkpoints_are_compared_with_their_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = RunStore::Folder(folder.path().to_owned());
        let put = |version: &str, text: &str| {
            let checkpoint = folder.path().join("checkpoints").join(version);
            fs::create_dir_all(&checkpoint).unwrap();
            fs::write(checkpoint.join("rank-0.safetensors"), text).unwrap();
            let manifest = json!({
                "format": 1, "version": version, "worldSize": 1,
                "model": {"sha256": "0", "blockNumels": []},
                "optimizer": {"updates": 2, "skippedInARow": 0},
                "files": [{
                    "name": "rank-0.safetensors", "size": 3,
                    "sha256": format!("{:x}", Sha256::digest("abc")),
                }],
            });
            fs::write(checkpoint.join("manifest.json"), manifest.to_string()).unwrap();
        };
        assert_eq!(verify_in(&run_store, None).unwrap(), (String::new(), true));
        put("step-2.attempt-0", "abc");
        put("step-10.attempt-1", "ab");
        fs::create_dir(folder.path().join("checkpoints/step-12.attempt-1")).unwrap();
        let good = "step-2.attempt-0: 1 files of 3 bytes match the manifest\n";
        let (text, all_match) = verify_in(&run_store, None).unwrap();
        let [first, second] = &text.split_inclusive('\n').collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert_eq!((*first, all_match), (good, false));
        assert!(
            second.starts_with("step-10.attempt-1: ")
                && second.ends_with("rank-0.safetensors` has 2 bytes, expected 3\n"),
            "{second}"
        );
        assert_eq!(verify_in(&run_store, Some(2)).unwrap(), (good.to_owned(), true));
    }
}
