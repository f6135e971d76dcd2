//! Inputs of jobs on this machine, checked before a process starts: models, data, checkpoints,
//! programs and functions.

use std::path::Path;

use rljob_crds::model::InitialWeights;
use rljob_crds::names::{CHECKPOINTS_DIR, EXPORT_COMPLETE_FILE};
use rljob_crds::restore::JobCheckpoint;
use rljob_crds::reward::RewardSpec;
use rljob_crds::{EnginePurpose, FixedModel};
use rljob_protocol::checkpoint::MANIFEST_FILE;

use super::jobs::{has_finished, model_directory, run_directory};
use super::model_folder::{
    incomplete_model, missing_template, missing_weights, not_a_language_model, not_a_reward_model,
};
use super::{programs, secrets};
use crate::validate::ValidatedJob;

/// Missing inputs of the jobs, checked before any process starts. Exports of earlier jobs of the
/// file and inputs of finished jobs need not exist.
pub fn missing(runs: &Path, jobs: &[ValidatedJob]) -> Vec<String> {
    let mut missing = Vec::new();
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| !has_finished(runs, job)) {
        let earlier = jobs.get(..index).unwrap_or_default();
        let problems = missing_model(runs, job, earlier)
            .into_iter()
            .chain(missing_teacher(runs, job, earlier))
            .chain(missing_fixed_models(runs, job, earlier))
            .chain(missing_data(job))
            .chain(programs::missing(&job.spec))
            .chain(missing_functions(job))
            .chain(missing_folders(job))
            .chain(secrets::missing(&job.spec, secrets::folder().as_deref()))
            .chain(missing_checkpoint(runs, job, earlier));
        missing.extend(problems.map(|problem| format!("{}: {problem}", job.name)));
    }
    missing
}

/// Whether the model of a job lacks files that [`missing`] names.
pub fn lacks_model_files(runs: &Path, job: &ValidatedJob) -> bool {
    missing_model(runs, job, &[]).is_some()
}

/// Whether the data of a job lack files that [`missing`] names.
pub fn lacks_data(job: &ValidatedJob) -> bool {
    missing_data(job).next().is_some()
}

/// Whether a model folder lacks what the data of a job need of it, which [`missing`] names.
pub fn lacks_tokenizer(folder: &Path, job: &ValidatedJob) -> bool {
    incomplete_model(folder).or_else(|| missing_template(folder, &job.spec)).is_some()
}

fn missing_model(runs: &Path, job: &ValidatedJob, earlier: &[ValidatedJob]) -> Option<String> {
    let model = model_directory(runs, job);
    match job.spec.model.job() {
        _ if job.spec.model.hugging_face.is_some() => None,
        Some(name) if is_earlier(job, name, earlier) => None,
        Some(name) => (!model.join(EXPORT_COMPLETE_FILE).is_file()).then(|| {
            format!(
                "spec.model.rljob: `{name}` has no complete export in {}; run that job first",
                model.display()
            )
        }),
        None => incomplete_model(&model)
            .or_else(|| {
                let missing = missing_weights(&model, job.spec.model.weights);
                missing.map(|what| format!("{what}, or set spec.model.weights: Random"))
            })
            .or_else(|| missing_template(&model, &job.spec))
            .map(|what| format!("spec.model.path: {what}")),
    }
}

/// What the folder of a teacher that learners hold lacks, unless an earlier job of the file writes
/// it.
fn missing_teacher(runs: &Path, job: &ValidatedJob, earlier: &[ValidatedJob]) -> Option<String> {
    let (field, teacher) = job.spec.algorithm.teacher_field()?;
    let teacher = Path::new(teacher.held()?);
    if is_written_by(teacher, runs, earlier) {
        return None;
    }
    incomplete_model(teacher)
        .or_else(|| missing_weights(teacher, InitialWeights::Pretrained))
        .map(|what| format!("{field}.path: {what}"))
}

/// What the folders of fixed models that engines of the job serve lack, or why they have another
/// kind of model, unless an earlier job of the file writes it.
fn missing_fixed_models(
    runs: &Path,
    job: &ValidatedJob,
    earlier: &[ValidatedJob],
) -> impl Iterator<Item = String> {
    let missing = |model: FixedModel<'_>| {
        let folder = Path::new(model.path);
        if is_written_by(folder, runs, earlier) {
            return None;
        }
        incomplete_model(folder)
            .or_else(|| missing_weights(folder, InitialWeights::Pretrained))
            .or_else(|| match model.purpose {
                EnginePurpose::Teacher => not_a_language_model(folder),
                _ => not_a_reward_model(folder),
            })
            .map(|what| format!("spec.{}.path: {what}", model.field))
    };
    job.spec.fixed_models().filter_map(missing)
}

/// Whether a folder is in the run directory of one of these jobs.
fn is_written_by(folder: &Path, runs: &Path, jobs: &[ValidatedJob]) -> bool {
    jobs.iter().any(|job| folder.starts_with(run_directory(runs, job)))
}

/// Files of reward functions that are not on this machine.
fn missing_functions(job: &ValidatedJob) -> impl Iterator<Item = String> {
    let rewards = job.spec.rewards.iter().enumerate();
    let paths = rewards.filter_map(|(index, reward)| Some((index, &reward.python.as_ref()?.path)));
    let missing = paths.filter(|(_, path)| !Path::new(path).is_file());
    missing.map(|(index, path)| {
        format!("spec.rewards[{index}].python.path: no file {path} is on this machine")
    })
}

/// Whether a job has rewards that need no server, command or tests, and the files of its reward
/// functions are all on this machine.
pub fn scores_alone(job: &ValidatedJob) -> bool {
    job.spec.rewards.iter().any(RewardSpec::scores_alone) && missing_functions(job).next().is_none()
}

/// Working folders of tools that are not on this machine.
fn missing_folders(job: &ValidatedJob) -> impl Iterator<Item = String> {
    let workflow = job.spec.rollout.workflow.iter();
    let tools = workflow.flat_map(|of| &of.tools).flat_map(|of| of.tools.iter().enumerate());
    let folders =
        tools.filter_map(|(index, tool)| Some((index, tool.command.as_ref()?.folder.as_ref()?)));
    let missing = folders.filter(|(_, folder)| !Path::new(folder).is_dir());
    missing.map(|(index, folder)| {
        let field = format!("spec.rollout.workflow.tools.tools[{index}].command.folder");
        format!("{field}: no folder {folder} is on this machine")
    })
}

/// Whether an earlier job of the file has this name.
fn is_earlier(job: &ValidatedJob, name: &str, earlier: &[ValidatedJob]) -> bool {
    earlier.iter().any(|other| other.namespace == job.namespace && other.name == name)
}

fn missing_checkpoint(runs: &Path, job: &ValidatedJob, earlier: &[ValidatedJob]) -> Option<String> {
    let source = job.spec.restore_from.as_ref()?;
    if let Some(JobCheckpoint { name, .. }) = &source.rljob {
        let folder = runs.join(&job.namespace).join(name).join(CHECKPOINTS_DIR);
        let complete = || {
            std::fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .flatten()
                .any(|entry| entry.path().join(MANIFEST_FILE).is_file())
        };
        // The coordinator checks buckets.
        let is_there =
            job.spec.storage.s3.is_some() || is_earlier(job, name, earlier) || complete();
        return (!is_there).then(|| {
            format!(
                "spec.restoreFrom.rljob: `{name}` has no complete checkpoint in {}; run that job \
                    first",
                folder.display()
            )
        });
    }
    let path = source.path.as_ref()?;
    (!Path::new(path).join(MANIFEST_FILE).is_file()).then(|| {
        format!(
            "spec.restoreFrom.path: {path} is not a complete checkpoint: manifest.json is missing"
        )
    })
}

fn missing_data(job: &ValidatedJob) -> impl Iterator<Item = String> {
    let sources = job.spec.dataset.sources().into_iter();
    let paths = sources.filter_map(|source| Some((source.field, source.path?)));
    paths
        .filter(|(_, path)| !Path::new(path).exists())
        .map(|(field, path)| format!("{field}.path: {path} does not exist"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rljob_crds::model::JobModelSource;
    use rljob_crds::names::METRICS_FILE;
    use rljob_protocol::status::StepMetrics;

    use super::super::jobs::test_support::job;
    use super::*;

    #[test]
    fn inputs_of_jobs_must_exist() {
        let runs = tempfile::tempdir().unwrap();
        let first = job(&["spec.dataset.train.path=/dev/../Cargo.none"]);
        let missing = |jobs: &[ValidatedJob]| super::missing(runs.path(), jobs);
        let data = "sums: spec.dataset.train.path: /Cargo.none does not exist".to_owned();
        assert_eq!(
            missing(std::slice::from_ref(&first)),
            ["sums: spec.model.path: /models/tiny is not a folder".to_owned(), data]
        );

        let mut second = first.clone();
        second.name = "more".to_owned();
        second.spec.model.path = None;
        second.spec.model.rljob = Some(JobModelSource { name: "sums".to_owned() });
        let folder = runs.path().join("lab/sums/export");
        let needed = format!(
            "more: spec.model.rljob: `sums` has no complete export in {}; run that job first",
            folder.display()
        );
        assert_eq!(missing(std::slice::from_ref(&second))[0], needed);
        assert!(
            !missing(&[first.clone(), second.clone()]).contains(&needed),
            "an earlier job of the file exports it"
        );

        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(EXPORT_COMPLETE_FILE), "{}").unwrap();
        let steps = first.spec.training.steps;
        let metrics =
            |step: u32| serde_json::to_string(&StepMetrics { step, ..Default::default() });
        let file = runs.path().join("lab/sums").join(METRICS_FILE);
        fs::write(&file, metrics(steps - 1).unwrap() + "\n").unwrap();
        assert_eq!(missing(&[first.clone(), second.clone()]).len(), 3, "steps were added");
        fs::write(&file, metrics(steps).unwrap() + "\n").unwrap();
        assert_eq!(
            missing(&[first, second]),
            ["more: spec.dataset.train.path: /Cargo.none does not exist"],
            "the first has finished"
        );
    }
}
