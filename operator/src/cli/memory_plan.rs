//! Memory plan of jobs on GPUs: `rljob-learner --plan-memory` computes it as learners do at their
//! start, from the shape of the model.

use std::path::Path;

use anyhow::{Context, bail};
use rljob_crds::RLJobSpec;

use super::job_check;
use crate::local::set::Set;
use crate::local::{gpus, jobs};
use crate::validate::ValidatedJob;

/// Plans the memory of the learners of all jobs of a file on GPUs of `gib` GiB; returns the lines
/// to print. Jobs without learners on GPUs have no plan. Engines of a job use `engine_percent` of
/// the GPUs if they share them with learners.
///
/// # Errors
/// A model does not fit, or its folder cannot be read.
pub fn plan(
    file: &Path,
    sets: &[Set],
    gib: u32,
    engine_percent: Option<u8>,
) -> anyhow::Result<Vec<String>> {
    if file == Path::new("-") {
        bail!("--gpu-memory needs a file: relative paths of models start at its folder");
    }
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    let jobs = jobs::read(file, sets, None)?;
    for job in &jobs {
        let at = format!("{}: rljob {}", file.display(), job.name);
        let percent = gpus::learner_percent(&job.spec, engine_percent);
        let bytes = ((u64::from(gib) << 30) / 100).saturating_mul(u64::from(percent));
        match plan_job(job, &jobs, bytes).with_context(|| at.clone()) {
            Ok(found) => lines.extend(found.lines().map(|line| format!("{at}: {line}"))),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if problems.is_empty() { Ok(lines) } else { bail!("{}", problems.join("\n")) }
}

fn plan_job(job: &ValidatedJob, jobs: &[ValidatedJob], bytes: u64) -> anyhow::Result<String> {
    if !job.spec.algorithm.has_learners() {
        return Ok("it has no learners, and no memory plan".to_owned());
    }
    let without = without_gpus(&job.spec);
    let groups = usize::from(job.spec.frozen_group().is_some()).saturating_add(1);
    if without.len() == groups {
        return Ok(without.concat());
    }
    let Some(model) = folder(job, jobs, jobs.len()) else {
        bail!(
            "--gpu-memory reads config.json of a local folder: add --set \
             'spec.model={{path: FOLDER}}'"
        );
    };
    let arguments = ["--plan-memory", &bytes.to_string()];
    let planned = job_check::check(job, model, "rljob-learner", &arguments)?;
    Ok(planned + &without.concat())
}

/// A line for each of the trainer and its group that has no GPUs.
fn without_gpus(spec: &RLJobSpec) -> Vec<String> {
    let trainer = (spec.trainer.gpus() == 0).then(|| {
        "its learners have no GPUs, and no memory plan; set trainer.resources.limits to plan for \
         them\n"
            .to_owned()
    });
    let group = spec.frozen_group().filter(|group| spec.trainer.of_group(group).gpus() == 0);
    let of_group = group.map(|group| {
        format!(
            "its group {} has no GPUs, and no memory plan; set resources.limits of the group to \
             plan for it\n",
            group.name
        )
    });
    trainer.into_iter().chain(of_group).collect()
}

/// Folder of a job's model: its own, or that of the job of the same file whose export it trains,
/// over `hops` jobs at most.
fn folder<'a>(job: &'a ValidatedJob, jobs: &'a [ValidatedJob], hops: usize) -> Option<&'a str> {
    let model = &job.spec.model;
    let source = || {
        let name = &model.rljob.as_ref()?.name;
        let source = jobs.iter().find(|other| other.name == *name)?;
        folder(source, jobs, hops.checked_sub(1)?)
    };
    model.path.as_deref().or_else(source)
}
