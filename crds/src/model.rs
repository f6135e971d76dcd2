//! Initial model: its source and its weights.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};

/// Model to train. Exactly one of `path`, `huggingFace` and `rljob`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new("!has(self.rljob) || self.weights == 'Pretrained'")
        .message("rljob names trained weights: weights must be Pretrained")
)]
pub struct ModelSpec {
    /// Folder with `config.json`, `tokenizer.json` and `*.safetensors`, as every role sees it.
    /// `rljob run` resolves a relative path against the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Model repository of the Hugging Face Hub. The run downloads it once and keeps the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HubModelSource>,
    /// Exported model of another RLJob in the same namespace and storage. The run waits until the
    /// export is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rljob: Option<JobModelSource>,
    /// `Pretrained` reads the weights of the source. `Random` draws weights from `training.seed`
    /// for the shape in `config.json`. Default Pretrained.
    #[serde(default)]
    pub weights: InitialWeights,
}

impl Union for ModelSpec {
    const MEMBERS: &'static [&'static str] = &["path", "huggingFace", "rljob"];
}

impl ModelSpec {
    /// The RLJob whose export is the model.
    pub fn job(&self) -> Option<&str> {
        self.rljob.as_ref().map(|source| source.name.as_str())
    }
}

/// Model repository of the Hugging Face Hub.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubModelSource {
    /// Repository, for example `Qwen/Qwen2.5-1.5B-Instruct`.
    #[schemars(
        length(min = 1, max = 193),
        regex(pattern = "^[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?$")
    )]
    pub repo: String,
    /// Branch, tag or commit. The run resolves it once, at its start. Default `main`.
    #[serde(default = "main_branch")]
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[A-Za-z0-9][-A-Za-z0-9._/]*$"))]
    pub revision: String,
    /// Access token for private and gated repositories. Default no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
}

pub(crate) fn main_branch() -> String {
    "main".to_owned()
}

/// Export of another RLJob.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobModelSource {
    /// Name of the RLJob.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

/// Source of the first weights.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum InitialWeights {
    /// Weights of the model source.
    #[default]
    Pretrained,
    /// Random weights for the shape in `config.json`.
    Random,
}
