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
        let path = path.filter(|path| path.starts_with('/'));
        if let Some(path) =
            path.filter(|path| !mounts.iter().any(|at| Path::new(path).starts_with(at)))
        {
            let message =
                format!("`{path}` is below no mountPath of spec.volumes: the image must have it");
            warnings.push(Problem::new(field, message));
        }
    }
}

/// Templates that do not depend on the row, and a template where a field is expected.
pub fn check_fields(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let (train, evaluation) = (&spec.dataset.train, spec.dataset.evaluation.as_ref());
    let prompts = [
        ("spec.dataset.train.prompt", Some(&train.prompt).filter(|_| !train.is_absent())),
        ("spec.dataset.evaluation.prompt", evaluation.map(|own| &own.prompt)),
    ];
    for (field, _) in
        prompts.iter().filter(|(_, text)| text.is_some_and(|text| !text.contains('{')))
    {
        let message = "uses no field of the row: all prompts are equal. For example {{question}}";
        warnings.push(Problem::new(*field, message));
    }
    let answers = [
        ("spec.dataset.train.answer", train.answer.as_ref()),
        ("spec.dataset.evaluation.answer", evaluation.and_then(|own| own.answer.as_ref())),
    ];
    for (field, _) in
        answers.iter().filter(|(_, name)| name.is_some_and(|name| name.contains("{{")))
    {
        warnings.push(Problem::new(*field, "is the name of a field of the row, not a template"));
    }
}
