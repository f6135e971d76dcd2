//! Exports during training: `exports/step-N` in the run store is complete if it has its marker,
//! which is written last and removed first.

use std::collections::BTreeSet;

use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR, EXPORTS_DIR};
use rljob_protocol::version::Version;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};
use serde::Deserialize;

/// A folder under `exports`.
struct Export {
    step: u32,
    name: String,
    complete: bool,
}

/// The newest step with a complete export; 0 without one. Blocks shortly.
pub fn newest(run_store: &RunStore) -> Result<u32, StorageError> {
    Ok(exports(run_store)?
        .iter()
        .filter(|export| export.complete)
        .map(|export| export.step)
        .max()
        .unwrap_or(0))
}

/// Complete exports after a step, as folders of the run store. Blocks shortly.
pub fn after(run_store: &RunStore, step: u32) -> Result<Vec<String>, StorageError> {
    let later = |export: &Export| export.complete && export.step > step;
    let later = exports(run_store)?.into_iter().filter(later);
    Ok(later.map(|export| format!("{EXPORTS_DIR}/{}", export.name)).collect())
}

/// Step of the complete final export; `None` without one. Blocks shortly.
pub fn final_step(run_store: &RunStore) -> Result<Option<u32>, StorageError> {
    #[derive(Deserialize)]
    struct Complete {
        version: Version,
    }
    let marker = format!("{EXPORT_DIR}/{EXPORT_COMPLETE_FILE}");
    let Some(bytes) = run_store.read(&marker, MAX_MANIFEST)? else { return Ok(None) };
    let complete: Complete = serde_json::from_slice(&bytes).map_err(|error| StorageError::Io {
        action: "understand",
        place: run_store.place(&marker),
        source: error.into(),
    })?;
    Ok(Some(complete.version.step))
}

/// Removes a complete export, its marker first. Blocks.
pub fn remove(run_store: &RunStore, folder: &str) -> Result<(), StorageError> {
    run_store.remove_folder(folder, EXPORT_COMPLETE_FILE)
}

/// Removes all complete exports but the newest `keep_last`, at least one, and what was left of
/// others before the newest. Blocks.
pub fn prune(run_store: &RunStore, keep_last: u32) -> Result<(), StorageError> {
    let exports = exports(run_store)?;
    let complete: BTreeSet<u32> =
        exports.iter().filter(|export| export.complete).map(|export| export.step).collect();
    let kept: BTreeSet<u32> =
        complete.iter().rev().take(keep_last.max(1) as usize).copied().collect();
    let is_old = |export: &&Export| {
        if export.complete {
            !kept.contains(&export.step)
        } else {
            complete.last() > Some(&export.step)
        }
    };
    exports.iter().filter(is_old).try_for_each(|export| {
        run_store.remove_folder(&format!("{EXPORTS_DIR}/{}", export.name), EXPORT_COMPLETE_FILE)
    })
}

/// Every `step-N`, and every `step-N.partial`, which is being written or was when its writer was
/// killed. Other names are not ours.
fn exports(run_store: &RunStore) -> Result<Vec<Export>, StorageError> {
    let export = |folder: rljob_storage::Folder| {
        let name = folder.name.strip_prefix("step-")?;
        let whole = name.strip_suffix(".partial").unwrap_or(name);
        let step = whole.parse::<u32>().ok().filter(|step| step.to_string() == whole)?;
        Some(Export { step, complete: folder.complete && whole == name, name: folder.name })
    };
    Ok(run_store
        .folders(EXPORTS_DIR, EXPORT_COMPLETE_FILE)?
        .into_iter()
        .filter_map(export)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{EXPORT_COMPLETE_FILE, EXPORTS_DIR, RunStore, after, newest, prune};

    #[test]
    fn the_newest_exports_and_what_is_being_written_are_kept_and_the_rest_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let run_store = RunStore::Folder(run.path().to_owned());
        assert_eq!(newest(&run_store).unwrap(), 0);
        prune(&run_store, 2).unwrap();
        let exports = run.path().join(EXPORTS_DIR);
        // Complete; torn, as a kill in the middle of a removal leaves it; killed before it had its
        // name; being written.
        for (name, complete) in [
            ("step-5", true),
            ("step-10", true),
            ("step-15", false),
            ("step-20", true),
            ("step-10.partial", true),
            ("step-25.partial", true),
            ("step-007", true),
            ("notes", true),
        ] {
            std::fs::create_dir_all(exports.join(name)).unwrap();
            std::fs::write(exports.join(name).join("model.safetensors"), "").unwrap();
            if complete {
                std::fs::write(exports.join(name).join(EXPORT_COMPLETE_FILE), "{}").unwrap();
            }
        }
        assert_eq!(newest(&run_store).unwrap(), 20);
        assert_eq!(after(&run_store, 5).unwrap(), ["exports/step-10", "exports/step-20"]);
        prune(&run_store, 2).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&exports)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["notes", "step-007", "step-10", "step-20", "step-25.partial"]);
        prune(&run_store, 0).unwrap();
        assert!(!exports.join("step-10").exists() && exports.join("step-20").exists());
    }
}
