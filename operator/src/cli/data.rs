//! Check of the data of jobs: `rljob-coordinator --check-data` reads it as a run would.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rljob_crds::names::EXPORT_COMPLETE_FILE;

use super::job_check;
use crate::local::set::Set;
use crate::local::{jobs, lacks_data, lacks_tokenizer};
use crate::validate::ValidatedJob;

/// Checks the data of all jobs of a file; returns the lines to print. Jobs whose sources appear
/// when they start are skipped, and with `runs` those whose files are missing: the check of
/// `--local`, which has these run directories, names them.
///
/// # Errors
/// What would fail a run at its start, or no job could be checked.
pub fn check(file: &Path, sets: &[Set], runs: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if file == Path::new("-") {
        bail!("--data needs a file: relative paths of data start at its folder");
    }
    let (mut lines, mut problems, mut is_checked) = (Vec::new(), Vec::new(), false);
    let jobs = jobs::read(file, sets, None)?;
    for (index, job) in jobs.iter().enumerate() {
        let at = format!("{}: rljob {}", file.display(), job.name);
        let earlier = jobs.get(..index).unwrap_or_default();
        let folder = match source_on_hub(job).map_or_else(|| tokenizer(job, earlier, runs), Err) {
            Ok(folder) => folder,
            Err(cause) => {
                lines.push(format!("{at}: data not checked: {cause}"));
                continue;
            }
        };
        is_checked = true;
        if runs.is_some() && (lacks_data(job) || lacks_tokenizer(&folder, job)) {
            continue;
        }
        match check_job(job, &folder).with_context(|| at.clone()) {
            Ok(found) => lines.extend(found.lines().map(|line| format!("{at}: {line}"))),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if !is_checked {
        lines.push("--data reads local files: set paths of the model and the datasets".to_owned());
        bail!("{}", lines.join("\n"));
    }
    if problems.is_empty() { Ok(lines) } else { bail!("{}", problems.join("\n")) }
}

/// What a run would say about its data, and whose tokenizer was read, if it is not the model's.
fn check_job(job: &ValidatedJob, folder: &Path) -> anyhow::Result<String> {
    let path = folder.to_str().with_context(|| format!("{} is not UTF-8", folder.display()))?;
    let found = job_check::check(job, path, "rljob-coordinator", &["--check-data"])?;
    let exported = job.spec.model.job();
    let whose = exported.map(|name| format!("tokenizer of the model of RLJob {name}: {path}\n"));
    Ok(whose.unwrap_or_default() + &found)
}

/// Why data or model of a job are downloaded when it starts.
fn source_on_hub(job: &ValidatedJob) -> Option<String> {
    let mut sources = job.spec.dataset.sources().into_iter();
    let data = sources.any(|source| source.hugging_face.is_some());
    data.then(|| "it is in a repository of the Hugging Face Hub".to_owned())
}

/// The folder with the tokenizer of a job: its model, or, until another job has exported that, the
/// model of the other job, whose tokenizer the export will have.
///
/// # Errors
/// The model appears when the job starts; why.
fn tokenizer(
    job: &ValidatedJob,
    earlier: &[ValidatedJob],
    runs: Option<&Path>,
) -> Result<PathBuf, String> {
    let model = &job.spec.model;
    if let Some(path) = &model.path {
        return Ok(PathBuf::from(path));
    }
    let Some(name) = model.job() else {
        return Err("its model is in a repository of the Hugging Face Hub".to_owned());
    };
    let export = runs.map(|runs| jobs::model_directory(runs, job));
    if let Some(export) = export.filter(|folder| folder.join(EXPORT_COMPLETE_FILE).is_file()) {
        return Ok(export);
    }
    let is_named = |other: &ValidatedJob| other.namespace == job.namespace && other.name == name;
    let before = earlier.iter().position(is_named);
    let other = before.and_then(|at| Some((earlier.get(at)?, earlier.get(..at)?)));
    match (other, runs) {
        (Some((other, before)), _) => tokenizer(other, before, runs),
        (None, Some(runs)) => Err(format!(
            "its model is the export of RLJob {name}, which is neither complete in {} nor an \
             earlier job of the file",
            runs.display()
        )),
        (None, None) => Err(format!(
            "its model is the export of RLJob {name}, which is no earlier job of the file: add \
             --local, which finds complete exports on this machine"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rljob_crds::model::JobModelSource;

    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn the_tokenizer_of_an_export_is_that_of_its_job_until_it_is_complete() {
        let first = validated();
        let with_model_of = |name: &str, of: &str| {
            let mut job = first.clone();
            job.name = name.to_owned();
            job.spec.model.path = None;
            job.spec.model.rljob = Some(JobModelSource { name: of.to_owned() });
            job
        };
        let chain = [first.clone(), with_model_of("second", &first.name)];
        let third = with_model_of("third", "second");
        let own = PathBuf::from(first.spec.model.path.clone().unwrap());
        assert_eq!(tokenizer(&third, &chain, None).as_ref(), Ok(&own));
        let alone = tokenizer(&third, &[], None).unwrap_err();
        assert!(alone.contains("export of RLJob second") && alone.contains("--local"), "{alone}");

        let runs = tempfile::tempdir().unwrap();
        let absent = tokenizer(&third, &[], Some(runs.path())).unwrap_err();
        assert!(absent.contains("which is neither complete in"), "{absent}");
        let export = runs.path().join(&third.namespace).join("second/export");
        fs::create_dir_all(&export).unwrap();
        assert_eq!(tokenizer(&third, &chain, Some(runs.path())), Ok(own));
        fs::write(export.join(EXPORT_COMPLETE_FILE), "{}").unwrap();
        assert_eq!(tokenizer(&third, &chain, Some(runs.path())), Ok(export));
    }
}
