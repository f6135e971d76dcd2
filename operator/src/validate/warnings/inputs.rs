//! Paths that no volume has, and templates of data that do not mean what they say.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::names::STORAGE_MOUNT;

use crate::validate::{Problem, rules};

/// Paths that no volume of the job provides.
pub fn check_mounts(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    // Templates of roles mount volumes without a path.
    if spec.volumes.iter().any(|volume| volume.mount_path.is_none()) {
        return;
    }
    let mounts = spec.volumes.iter().filter_map(|volume| volume.mount_path.as_deref());
    let mounts: Vec<&str> = mounts.chain([STORAGE_MOUNT]).collect();
    for (field, path) in rules::paths(spec) {
        let is_mounted = mounts.iter().any(|at| Path::new(path).starts_with(at));
        if path.starts_with('/') && !is_mounted {
            let message =
                format!("`{path}` is below no mountPath of spec.volumes: the image must have it");
            warnings.push(Problem::new(field, message));
        }
    }
}

/// Templates that do not depend on the row, and a template where a field is expected.
pub fn check_fields(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let (parts, suites) = (spec.dataset.train.parts(), spec.dataset.suites());
    let train = parts.iter().map(|own| (&own.field, &own.data.prompt, own.data.answer.as_ref()));
    let suites = suites.iter().map(|own| (&own.field, &own.data.prompt, own.data.answer.as_ref()));
    let data: Vec<_> = train.chain(suites).collect();
    for (field, ..) in
        data.iter().filter(|(_, prompt, _)| !prompt.is_empty() && !prompt.contains('{'))
    {
        let message = "uses no field of the row: all prompts are equal. For example {{question}}";
        warnings.push(Problem::new(format!("{field}.prompt"), message));
    }
    let is_template = |name: Option<&String>| name.is_some_and(|name| name.contains("{{"));
    for (field, ..) in data.iter().filter(|(.., answer)| is_template(*answer)) {
        let message = "is the name of a field of the row, not a template";
        warnings.push(Problem::new(format!("{field}.answer"), message));
    }
}
