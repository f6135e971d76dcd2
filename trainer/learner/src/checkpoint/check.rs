//! Checks that a checkpoint is complete and of these models.

use std::collections::BTreeMap;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::version::Version;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};

use super::CheckpointError;
use super::files::file_names;
use super::manifest::{
    FORMAT, FORMAT_WITH_FILES, FORMAT_WITH_ROLES, MANIFEST_FILE, Manifest, ModelShape, role_name,
};

/// Checks that a manifest is of this version and these models.
pub fn check_identity(
    folder: &RunStore,
    manifest: &Manifest,
    version: Version,
    shapes: &BTreeMap<ModelRole, ModelShape>,
) -> Result<(), CheckpointError> {
    let other = |found: String, expected: String| {
        Err(CheckpointError::Other {
            place: folder.place("").trim_end_matches('/').to_owned(),
            found,
            expected,
        })
    };
    if ![FORMAT, FORMAT_WITH_ROLES, FORMAT_WITH_FILES].contains(&manifest.format) {
        let expected = format!("format {FORMAT} to {FORMAT_WITH_FILES}");
        return other(format!("of format {}", manifest.format), expected);
    }
    if manifest.version != version {
        return other(manifest.version.to_string(), version.to_string());
    }
    let found: BTreeMap<&str, &ModelShape> = manifest
        .roles
        .iter()
        .map(|(role, part)| (role.as_str(), &part.model))
        .chain([(role_name(ModelRole::Policy), &manifest.model)])
        .collect();
    let expected: BTreeMap<&str, &ModelShape> =
        shapes.iter().map(|(role, shape)| (role_name(*role), shape)).collect();
    if found == expected {
        return Ok(());
    }
    let missing = expected.keys().find(|role| !found.contains_key(*role));
    let remedy = missing.map_or_else(
        || "name a checkpoint of a job with this model, lora and kind of algorithm".to_owned(),
        |role| {
            format!(
                "it has no {role}: name a checkpoint of a job with this algorithm, or begin with \
                 an export (spec.model) and a new {role}"
            )
        },
    );
    other(describe(&found), format!("{}; {remedy}", describe(&expected)))
}

fn describe(shapes: &BTreeMap<&str, &ModelShape>) -> String {
    let describe = |(role, shape): (&&str, &&ModelShape)| {
        let numel = shape.block_numels.iter().sum::<i64>();
        let base = shape.base_sha256.as_ref();
        let base = base.map(|base| format!(", adapters of the base {base:.12}"));
        format!(
            "a {role} model of {numel} parameters with layout {:.12}{}",
            shape.sha256,
            base.unwrap_or_default()
        )
    };
    shapes.iter().map(describe).collect::<Vec<_>>().join(" and ")
}

/// The manifest of a checkpoint.
pub fn read_manifest(folder: &RunStore) -> Result<Manifest, CheckpointError> {
    let place = folder.place(MANIFEST_FILE);
    let missing = || StorageError::Io {
        action: "read",
        place: place.clone(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    let bytes = folder.read(MANIFEST_FILE, MAX_MANIFEST)?.ok_or_else(missing)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| torn(&place, format!("is not a manifest: {error}")))
}

/// Checks that every file is listed and has its size. Checksums are verified on reading.
pub fn check_files(
    folder: &RunStore,
    manifest: &Manifest,
    count: usize,
) -> Result<(), CheckpointError> {
    let ranks = manifest.world_size;
    let listed = manifest.files.iter().map(|entry| entry.name.clone());
    if ranks == 0 || !listed.eq((0..ranks).flat_map(|rank| file_names(rank, ranks, count))) {
        return Err(torn(
            &folder.place(MANIFEST_FILE),
            format!("does not list {count} files for each of its {ranks} ranks"),
        ));
    }
    for entry in &manifest.files {
        match folder.size(&entry.name)? {
            Some(size) if size == entry.size => {}
            Some(size) => {
                return Err(torn(
                    &folder.place(&entry.name),
                    format!("has {size} bytes, expected {}", entry.size),
                ));
            }
            None => return Err(torn(&folder.place(&entry.name), "is missing".to_owned())),
        }
    }
    Ok(())
}

/// A file of a checkpoint that is missing or altered.
pub fn torn(place: &str, detail: String) -> CheckpointError {
    CheckpointError::Torn { place: place.to_owned(), detail }
}
