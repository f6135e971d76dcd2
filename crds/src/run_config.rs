//! Run configuration: the spec and the paths that the operator or `rljob run` passes to every
//! process of a job. It contains no secret.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use crate::RLJobSpec;
use crate::algorithm::ppo::GaeTimestep;
use crate::algorithm::{Algorithm, DataKind, Sharding};
use crate::data::{HubDatasetSource, Suite, TrainDataset};
use crate::names::HUB_DIR;
use crate::storage::S3Source;

/// The run configuration, `run.json`. Processes read it with `rljob_protocol::run_config::read`,
/// which accepts those of other releases.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunConfig {
    /// Lowest protocol version whose readers understand the rest; 1 if absent. See [`PROTOCOL`].
    #[serde(default = "first_protocol")]
    pub protocol: u32,
    /// Namespace of the RLJob; `default` in local runs.
    pub namespace: String,
    /// Name of the RLJob.
    pub name: String,
    /// UID of the RLJob.
    pub uid: String,
    /// Run directory in the file system of the processes. Scratch space if the run is stored in a
    /// bucket.
    pub run_directory: PathBuf,
    /// Bucket that stores the run; none if the run directory does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<BucketConfig>,
    /// Model folder in the file system of the processes: `spec.model.path`, the downloaded
    /// repository, or the export of another job. The latter two may not be complete yet.
    pub model_directory: PathBuf,
    /// The `spec.model.path` that identifies the model in the run store; none if it is that of
    /// `spec`. Set by local runs whose model has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_identity: Option<String>,
    /// The spec with its defaults.
    pub spec: RLJobSpec,
}

/// Protocol version that introduced the current shape of the run configuration. A field of the spec
/// whose loss would change a run has a later one in [`protocol`].
pub const PROTOCOL: u32 = 2;

/// Protocol version of runs without training or on pairs, and of runs with `lora`, `ppo.valueHead`,
/// `ppo.valueNormalization`, `ppo.adaptiveLambda`, `ppo.criticLambda`, `ppo.gaeTimestep: Turn`,
/// `distillation.offPolicy`, `grpo.epochs`, `grpo.distillation`, `entropyCoefficient`,
/// `training.epochs`, `training.sharding: Hybrid`, `rollout.workflow`,
/// `weightSync.runningCompletions`, suites, mixtures, filters, conversations, `tools`, `rewards` or
/// `rewardFields` of data, tokens of servers, `inference.podsPerReplica`, `evaluation`, engines of
/// a reward model or a teacher, `trainer.groups`, `rollbackTo` or `verifiers`, which older
/// coordinators and learners would ignore or not read.
const PROTOCOL_KINDS: u32 = 3;

/// Lowest protocol version whose readers understand the configuration of this spec.
pub fn protocol(spec: &RLJobSpec) -> u32 {
    let algorithm = spec.algorithm.resolve();
    let kind = algorithm.map(|own| own.data());
    let is_plain = !matches!(kind, Some(DataKind::Pairs | DataKind::None))
        && spec.lora.is_none()
        && !algorithm.is_some_and(|own| own.has_value_head())
        && !algorithm.is_some_and(|own| own.normalizes_values())
        && !algorithm.is_some_and(has_new_policy_settings)
        && spec.training.sharding != Some(Sharding::Hybrid)
        && spec.rollout.workflow.is_none()
        && spec.weight_sync.running_completions.is_none()
        && spec.inference.pods_per_engine() == 1
        && spec.verifiers.is_none()
        && spec.evaluation.is_none()
        && spec.fixed_models().next().is_none()
        && spec.rollback_to.is_none()
        && spec.trainer.groups.is_empty()
        && spec.training.epochs.is_none()
        && spec.algorithm.distillation.as_ref().is_none_or(|own| own.off_policy.is_none())
        // Older coordinators cannot read trackers without MLflow.
        && spec.tracking.as_ref().is_none_or(|tracking| tracking.mlflow.is_some())
        && spec.dataset.is_plain()
        && spec.service_tokens().is_empty();
    if is_plain { PROTOCOL } else { PROTOCOL_KINDS }
}

fn has_new_policy_settings(algorithm: Algorithm<'_>) -> bool {
    let epochs = matches!(algorithm, Algorithm::Grpo(_)) && algorithm.epochs() > 1;
    let own = match algorithm {
        Algorithm::Grpo(grpo) => grpo.distillation.is_some(),
        Algorithm::Ppo(ppo) => {
            ppo.adaptive_lambda.is_some()
                || ppo.critic_lambda.is_some()
                || ppo.gae_timestep != GaeTimestep::Token
        }
        _ => false,
    };
    epochs || own || algorithm.policy().is_some_and(|policy| policy.entropy_coefficient > 0.0)
}

fn first_protocol() -> u32 {
    1
}

impl RunConfig {
    /// Model folder of a job whose model comes from the Hugging Face Hub.
    pub fn hub_model(run_directory: &Path, spec: &RLJobSpec) -> Option<PathBuf> {
        let source = spec.model.hugging_face.as_ref()?;
        Some(run_directory.join(hub_path("models", &source.repo, &source.revision)))
    }

    /// Training data, with downloaded folders in place of Hugging Face sources.
    pub fn train_dataset(&self) -> TrainDataset {
        let mut dataset = self.spec.dataset.train.clone();
        if let Some(source) = dataset.hugging_face.take() {
            dataset.path = Some(self.hub_dataset(&source));
            (dataset.split, dataset.subset) = (source.split, source.config);
        }
        for part in &mut dataset.mixture {
            if let Some(source) = part.hugging_face.take() {
                part.path = Some(self.hub_dataset(&source));
                (part.split, part.subset) = (source.split, source.config);
            }
        }
        dataset
    }

    /// Suites of the evaluation, with downloaded folders in place of Hugging Face sources.
    pub fn suites(&self) -> Vec<Suite> {
        let mut suites = self.spec.dataset.suites();
        for suite in &mut suites {
            let dataset = &mut suite.data;
            if let Some(source) = dataset.hugging_face.take() {
                dataset.path = Some(self.hub_dataset(&source));
                (dataset.split, dataset.subset) = (source.split, source.config);
            }
        }
        suites
    }

    /// Folder of a downloaded dataset repository.
    pub fn hub_dataset(&self, source: &HubDatasetSource) -> String {
        let path = self.run_directory.join(hub_path("datasets", &source.repo, &source.revision));
        path.to_string_lossy().into_owned()
    }

    /// Run store as messages between processes name it: the run directory, or `s3://bucket/prefix`.
    pub fn run_store(&self) -> PathBuf {
        self.bucket.as_ref().map_or_else(
            || self.run_directory.clone(),
            |bucket| format!("s3://{}/{}", bucket.bucket, bucket.prefix).into(),
        )
    }
}

/// Path of a downloaded repository, relative to the run directory:
/// `hub/<models or datasets>/<owner>--<name>@<revision>`.
pub fn hub_path(kind: &str, repo: &str, revision: &str) -> PathBuf {
    let name = format!("{repo}@{revision}").replace('/', "--");
    [HUB_DIR, kind, &name].iter().collect()
}

/// Prefix in a bucket of an S3-compatible store, with its endpoint and keys.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BucketConfig {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all object names of the run, without a trailing slash.
    pub prefix: String,
    /// URL of the store. Default the AWS endpoint of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: String,
    /// Folder with one file per key. Default keys from the environment of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
}

impl BucketConfig {
    /// Configuration of a job in a bucket.
    pub fn of(
        source: &S3Source,
        namespace: &str,
        name: &str,
        credentials: Option<PathBuf>,
    ) -> Self {
        let prefix = source.prefix.as_ref().map_or_else(String::new, |prefix| format!("{prefix}/"));
        Self {
            bucket: source.bucket.clone(),
            prefix: format!("{prefix}{namespace}/{name}"),
            endpoint: source.endpoint.clone(),
            region: source.region.clone(),
            credentials,
        }
    }
}
