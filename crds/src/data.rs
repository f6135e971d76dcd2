//! Where models, data and the run directory come from.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The model to train. Exactly one of `path` and `exportOf`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.path) != has(self.exportOf)").message("set exactly one of path and exportOf"))]
#[x_kube(validation = Rule::new("!has(self.exportOf) || self.weights == 'Pretrained'").message("exportOf names trained weights: weights must be Pretrained"))]
pub struct ModelSpec {
    /// A Hugging Face model folder (`config.json`, `tokenizer.json`, `*.safetensors`) as every role
    /// sees it. `rljob run` resolves a relative path against the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// The name of another RLJob in this namespace and storage: its exported model is used as soon
    /// as it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40))]
    pub export_of: Option<String>,
    /// `Pretrained` loads the folder's weights; `Random` draws them from `training.seed` for the
    /// shape in `config.json`. Default Pretrained.
    #[serde(default)]
    pub weights: InitialWeights,
}

/// Where the first weights come from.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum InitialWeights {
    /// The folder's safetensors.
    #[default]
    Pretrained,
    /// Drawn at random for the shape in `config.json`.
    Random,
}

/// A volume mounted into every role. Exactly one source.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("[has(self.persistentVolumeClaim), has(self.hostPath), has(self.configMap)].filter(x, x).size() == 1").message("set exactly one of persistentVolumeClaim, hostPath and configMap"))]
pub struct VolumeSpec {
    /// The volume's name, a DNS label that is unique in the job.
    #[schemars(length(min = 1, max = 50), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Absolute path in the containers.
    #[schemars(length(min = 2, max = 4096), regex(pattern = "^/"))]
    pub mount_path: String,
    /// Mount without the right to write. Default true.
    #[serde(default = "read_only")]
    pub read_only: bool,
    /// An existing claim in the job's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A folder of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
    /// A ConfigMap's keys as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
}

fn read_only() -> bool {
    true
}

/// An existing PersistentVolumeClaim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimSource {
    /// The claim's name.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// A folder inside the volume. Default its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub sub_path: Option<String>,
}

/// A folder of the node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPathSource {
    /// Absolute path on the node.
    #[schemars(length(min = 2, max = 4096), regex(pattern = "^/"))]
    pub path: String,
}

/// A ConfigMap in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapSource {
    /// The ConfigMap's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Where run directories are kept. Exactly one source. A volume must be readable and writable by
/// every pod of the job.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("[has(self.persistentVolumeClaim), has(self.hostPath), has(self.s3)].filter(x, x).size() == 1").message("set exactly one of persistentVolumeClaim, hostPath and s3"))]
pub struct StorageSpec {
    /// An existing claim with access mode ReadWriteMany (ReadWriteOnce suffices on one node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A folder that all nodes share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
    /// A bucket of an S3-compatible store. Pods share no folder then: weights reach the engines by
    /// `weightSync.method: Distributed`, and `model.exportOf` is not to be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Source>,
}

/// A bucket of an S3-compatible store. Checkpoints, exports, the coordinator's journal and the
/// JSONL files are objects below `<prefix>/<namespace>/<name>/`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Source {
    /// The bucket's name.
    #[schemars(length(min = 3, max = 63), regex(pattern = "^[a-z0-9][-a-z0-9.]*[a-z0-9]$"))]
    pub bucket: String,
    /// What the name of every object starts with. Default nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = "^[-A-Za-z0-9_.=]+(/[-A-Za-z0-9_.=]+)*$")
    )]
    pub prefix: Option<String>,
    /// URL of the store, `https://host` with a port if it needs one; `http://` is sent as it is.
    /// Default AWS's own of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 512), regex(pattern = "^https?://[^/]+/?$"))]
    pub endpoint: Option<String>,
    /// Region that requests are signed for. Default us-east-1.
    #[serde(default = "region")]
    #[schemars(length(min = 1, max = 63))]
    pub region: String,
    /// A Secret in the job's namespace with the keys `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`
    /// and, if there is one, `AWS_SESSION_TOKEN`. The coordinator and the trainers mount it and
    /// read it again for every request. Default what the node gives its pods (an instance's or a
    /// pod's own role).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
}

fn region() -> String {
    "us-east-1".to_owned()
}

/// A Secret in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretReference {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Training and evaluation data.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// What is trained on.
    pub train: TrainDataset,
    /// What is measured while training goes on: accuracy, with the same reward, or the loss of
    /// `sft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationDataset>,
}

/// Rows and how they become prompts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainDataset {
    /// A `.jsonl` file (one object a line), a `.parquet` file, or a Hugging Face dataset folder of
    /// such files. `rljob run` resolves a relative path against the job file.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
    /// Split of a dataset folder, as its README.md or its files' names say. Default `train`; not
    /// for a single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder whose README.md lists several. Default the one
    /// marked as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Rows whose prompt has more tokens, chat template included, are left out, and their number is
    /// logged. Unset, a prompt that the model's context cannot hold is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Jinja template of the prompt over a row's fields, for example `{{question}}`.
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Name of the field that holds the reference answer, which `math` and `exactMatch` rewards
    /// compare with and others are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Jinja template of the text to learn, for example `{{answer}}`. Needed by `sft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// `Chat` makes the prompt the user's turn of the tokenizer's chat template; `Text` takes it as
    /// it is. Default Chat.
    #[serde(default)]
    pub format: PromptFormat,
}

/// Evaluation data. With `answer`, accuracy is measured: each prompt is completed greedily, and
/// `samples` times at `temperature`. With `completion`, `sft` measures its loss: the mean negative
/// log-likelihood of the completions' tokens, without training on them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.answer) || has(self.completion)").message("set answer, which the reward compares with, or completion, whose loss sft measures, or both"))]
pub struct EvaluationDataset {
    /// A `.jsonl` file (one object a line), a `.parquet` file, or a Hugging Face dataset folder of
    /// such files. `rljob run` resolves a relative path against the job file.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
    /// Split of a dataset folder, as its README.md or its files' names say. Default `test`; not for
    /// a single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub split: Option<String>,
    /// Subset (configuration) of a dataset folder whose README.md lists several. Default the one
    /// marked as default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub subset: Option<String>,
    /// Rows whose prompt has more tokens, chat template included, are left out, and their number is
    /// logged. Unset, a prompt that the model's context cannot hold is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<u32>,
    /// Jinja template of the prompt over a row's fields.
    #[schemars(length(min = 1, max = 65536))]
    pub prompt: String,
    /// Name of the field that holds the reference answer, with which the reward scores completions.
    /// Needed by `grpo`. Default none: accuracy is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub answer: Option<String>,
    /// Jinja template of the text whose loss `sft` measures, for example `{{answer}}`. Default
    /// none: the loss is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub completion: Option<String>,
    /// `Chat` or `Text`, as for training data. Default Chat.
    #[serde(default)]
    pub format: PromptFormat,
    /// Steps between evaluations; also before the first step and after the last. Default 10.
    #[serde(default = "evaluation_every_steps")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every_steps: u32,
    /// Prompts taken from the start of the file. Default 256.
    #[serde(default = "evaluation_limit")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: u32,
    /// Completions of each prompt beside the greedy one, from which pass@k (the unbiased estimator
    /// of Chen et al., arXiv 2107.03374) and maj@k are made for k = 1, 2, 4, … up to it. Default 1.
    #[serde(default = "evaluation_samples")]
    #[schemars(range(min = 1, max = 1024))]
    pub samples: u32,
    /// Their sampling temperature. Default `rollout.temperature`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub temperature: Option<f64>,
    /// Reward from which on a completion counts as correct, for pass@k. Default 1.
    #[serde(default = "correct_reward")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub correct_reward: f64,
}

fn evaluation_samples() -> u32 {
    1
}

fn correct_reward() -> f64 {
    1.0
}

fn evaluation_every_steps() -> u32 {
    10
}

fn evaluation_limit() -> u32 {
    256
}

/// How a rendered prompt becomes tokens.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum PromptFormat {
    /// The user's turn in the tokenizer's chat template.
    #[default]
    Chat,
    /// The text itself.
    Text,
}
