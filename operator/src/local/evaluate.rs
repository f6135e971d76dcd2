//! `rljob evaluate`: the evaluation of a model by the settings of a training job. Pure.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kube::ResourceExt;
use rljob_crds::RLJob;
use rljob_crds::algorithm::evaluation::EvaluationSpec;
use rljob_crds::algorithm::{AlgorithmSpec, OptimizerSpec, RolloutSpec, TrainingSpec};
use rljob_crds::data::TrainDataset;
use rljob_crds::job::{CheckpointSpec, WeightSyncSpec};
use rljob_crds::model::{InitialWeights, ModelSpec};
use rljob_crds::roles::TrainerSpec;
use rljob_crds::tracking::TrackingSpec;

use super::set::Set;

/// Evaluates the model of a job on this machine, without training.
///
/// Model, dataset.evaluation, rewards, sampling and engines are those of the job, which may be a
/// training job. The same command resumes an unfinished evaluation.
#[derive(clap::Args, Clone, Debug)]
pub struct EvaluateArgs {
    /// The job file. Relative paths in it start at its folder.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Name of the job, if the file has several.
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Model folder in place of the job's model, for example the `export` of a run.
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<PathBuf>,
    /// Data in place of those of dataset.evaluation: a `.jsonl` or `.parquet` file, or a dataset
    /// folder.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Name of the run: each model needs a separate one. Default the name of the job with
    /// `-evaluation`.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// As for `rljob run`; with --job, a PATH without NAME is one of that job. Repeatable.
    #[arg(long, value_name = "[NAME:]PATH=VALUE")]
    pub set: Vec<String>,
    /// Folder of run directories, as for `rljob run`.
    #[arg(long, value_name = "RUNS", default_value = "runs")]
    pub dir: PathBuf,
    /// As for `rljob run`.
    #[arg(long, value_name = "COMMAND")]
    pub engine_command: Option<String>,
}

/// A file without the job that is meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    #[error("the file has several jobs: select one with --job: {0}")]
    Several(String),
    #[error("the file has no job `{name}`; it has {found}")]
    Missing { name: String, found: String },
    #[error(
        "--data replaces the rows of one dataset, but dataset.evaluation has suites: remove it"
    )]
    Suites,
}

impl EvaluateArgs {
    /// The options of this command, quoted for a shell, each after a space.
    pub(super) fn options(&self) -> String {
        let mut line = String::new();
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        for (option, value) in [
            ("--job", self.job.clone()),
            ("--model", path(&self.model)),
            ("--data", path(&self.data)),
            ("--name", self.name.clone()),
        ] {
            if let Some(value) = value {
                let _ = write!(line, " {option} {}", quoted(&value));
            }
        }
        line
    }

    /// The changes, of the selected job only if they name none: they need not suit the others.
    pub(super) fn sets(&self, sets: &[Set]) -> Vec<Set> {
        let of_selected =
            |set: &Set| Set { job: set.job.clone().or_else(|| self.job.clone()), ..set.clone() };
        sets.iter().map(of_selected).collect()
    }

    /// The evaluation of the selected job. `current` is the folder that relative paths of the
    /// command line start at.
    pub(super) fn apply(&self, jobs: Vec<RLJob>, current: &Path) -> Result<RLJob, SelectError> {
        let names: Vec<String> = jobs.iter().map(ResourceExt::name_any).collect();
        let found = names.join(", ");
        let selected = match &self.job {
            Some(name) => jobs.into_iter().find(|job| job.name_any() == *name),
            None if names.len() > 1 => return Err(SelectError::Several(found)),
            None => jobs.into_iter().next(),
        };
        let name = self.job.clone().unwrap_or_default();
        let mut job = selected.ok_or(SelectError::Missing { name, found })?;
        job.metadata.name =
            Some(self.name.clone().unwrap_or_else(|| format!("{}-evaluation", job.name_any())));
        let absolute = |path: &PathBuf| current.join(path).to_string_lossy().into_owned();
        let spec = &mut job.spec;
        spec.algorithm =
            AlgorithmSpec { evaluation: Some(EvaluationSpec {}), ..AlgorithmSpec::default() };
        spec.training = TrainingSpec {
            precision: spec.training.precision,
            seed: spec.training.seed,
            deterministic: spec.training.deterministic,
            ..TrainingSpec::default()
        };
        spec.dataset.train = TrainDataset::default();
        spec.trainer = TrainerSpec::default();
        spec.optimizer = OptimizerSpec::default();
        spec.checkpoint = CheckpointSpec::default();
        spec.weight_sync = WeightSyncSpec::default();
        spec.evaluation = None;
        spec.restore_from = None;
        spec.tracking = spec.tracking.take().and_then(without_traces);
        spec.lora = None;
        if let Some(model) = &self.model {
            spec.model = ModelSpec {
                path: Some(absolute(model)),
                hugging_face: None,
                rljob: None,
                weights: InitialWeights::Pretrained,
            };
        }
        if let Some(evaluation) = &mut spec.dataset.evaluation {
            (evaluation.completion, evaluation.chosen, evaluation.rejected) = (None, None, None);
            let own = std::mem::take(&mut spec.rollout);
            spec.rollout = RolloutSpec {
                max_new_tokens: evaluation.max_new_tokens.take().unwrap_or(own.max_new_tokens),
                temperature: evaluation.temperature.take().unwrap_or(own.temperature),
                min_new_tokens: own.min_new_tokens,
                stop: own.stop,
                stop_token_ids: own.stop_token_ids,
                workflow: own.workflow,
                ..RolloutSpec::default()
            };
            if let Some(data) = &self.data {
                if !evaluation.suites.is_empty() {
                    return Err(SelectError::Suites);
                }
                evaluation.path = Some(absolute(data));
                (evaluation.hugging_face, evaluation.split, evaluation.subset) = (None, None, None);
            }
        }
        Ok(job)
    }
}

/// The trackers of evaluations: traces are those of steps.
fn without_traces(tracking: TrackingSpec) -> Option<TrackingSpec> {
    let mlflow = tracking.mlflow?;
    Some(TrackingSpec { mlflow: Some(mlflow), open_telemetry: None })
}

/// A word as a shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::parse_jobs;
    use crate::validate::test_support::MINIMAL;

    fn arguments(job: Option<&str>) -> EvaluateArgs {
        EvaluateArgs {
            file: "job.yaml".into(),
            job: job.map(str::to_owned),
            model: Some("runs/a/export".into()),
            data: Some("/data/more.jsonl".into()),
            name: None,
            set: Vec::new(),
            dir: "runs".into(),
            engine_command: None,
        }
    }

    fn jobs() -> Vec<RLJob> {
        let evaluation =
            "evaluation: {path: /data/test.jsonl, prompt: '{{question}}', answer: a, limit: 9}";
        let text =
            MINIMAL.replace("answer: answer}}", &format!("answer: answer}}, {evaluation}}}"));
        parse_jobs(&format!("{text}---{}", text.replace("name: sums", "name: more"))).unwrap()
    }

    #[test]
    fn a_training_job_becomes_the_evaluation_of_a_model() {
        let job = arguments(Some("more")).apply(jobs(), Path::new("/work")).unwrap();
        assert_eq!(job.name_any(), "more-evaluation");
        assert_eq!(job.spec.model.path.as_deref(), Some("/work/runs/a/export"));
        let evaluation = job.spec.dataset.evaluation.clone().unwrap();
        assert_eq!(evaluation.path.as_deref(), Some("/data/more.jsonl"));
        assert_eq!(evaluation.limit, Some(9));
        let problems = crate::validate::validate(&job, crate::validate::Policy::LOCAL).err();
        assert!(problems.is_none(), "{problems:?}");
        assert_eq!(crate::validate::warnings(&job.spec), []);
    }

    #[test]
    fn trackers_of_steps_are_left_out() {
        let tracked_by = |tracking: Value| {
            let mut jobs = jobs();
            jobs[0].spec.tracking = Some(serde_json::from_value(tracking).unwrap());
            let job = arguments(Some("sums")).apply(jobs, Path::new("/")).unwrap();
            serde_json::to_value(job.spec.tracking).unwrap()
        };
        let mlflow = json!({"uri": "http://mlflow:5000", "experiment": "sums"});
        let receiver = json!({"endpoint": "http://collector:4318"});
        let both = json!({"mlflow": mlflow, "openTelemetry": receiver});
        assert_eq!(tracked_by(both), json!({"mlflow": mlflow}));
        assert_eq!(tracked_by(json!({"openTelemetry": receiver})), Value::Null);
    }

    #[test]
    fn suites_are_kept_and_have_no_other_data() {
        let text = MINIMAL.replace(
            "answer: answer}}",
            "answer: answer}, evaluation: {prompt: '{{q}}', answer: a, suites: [{name: x, path: \
             /x.jsonl, maxNewTokens: 7}, {name: y, path: /y.jsonl, samples: 3}]}}",
        );
        let jobs = || parse_jobs(&text).unwrap();
        let error = arguments(None).apply(jobs(), Path::new("/")).unwrap_err();
        assert_eq!(error, SelectError::Suites);
        let own = EvaluateArgs { data: None, ..arguments(None) };
        let job = own.apply(jobs(), Path::new("/")).unwrap();
        let suites = job.spec.dataset.suites();
        let found: Vec<_> = suites
            .iter()
            .map(|suite| (suite.name.as_deref(), suite.data.max_new_tokens, suite.data.samples))
            .collect();
        assert_eq!(found, [(Some("x"), Some(7), 1), (Some("y"), None, 3)]);
        let problems = crate::validate::validate(&job, crate::validate::Policy::LOCAL).err();
        assert!(problems.is_none(), "{problems:?}");
    }

    #[test]
    fn changes_without_a_name_are_those_of_the_selected_job() {
        let sets = ["spec.training.seed=3", "more:spec.training.seed=4"];
        let sets: Vec<Set> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let jobs_of = |job| -> Vec<Option<String>> {
            arguments(job).sets(&sets).into_iter().map(|set| set.job).collect()
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(jobs_of(Some("sums")), [named("sums"), named("more")]);
        assert_eq!(jobs_of(None), [None, named("more")]);
    }

    #[test]
    fn the_job_is_selected_by_name() {
        let error = |job| arguments(job).apply(jobs(), Path::new("/")).unwrap_err().to_string();
        assert_eq!(error(None), "the file has several jobs: select one with --job: sums, more");
        assert_eq!(error(Some("x")), "the file has no job `x`; it has sums, more");
    }
}
