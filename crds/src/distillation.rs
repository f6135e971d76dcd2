//! Settings of `distillation`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::grpo::{
    GrpoSpec, KlEstimator, KlTerm, LossAggregation, NormalizationMean, NormalizationScale,
    NormalizationSpec,
};
use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// Settings of `distillation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.offPolicy) || has(self.teacher.path)")
        .message("offPolicy needs teacher.path: learners compute the teacher's most likely tokens")
)]
#[x_kube(
    validation = Rule::new("!has(self.offPolicy) || \
             self.groupSize == 1 && self.lossAggregation == 'Token'")
        .message("groupSize and lossAggregation are not used with offPolicy; remove them")
)]
pub struct DistillationSpec {
    /// Model whose distribution the policy learns.
    pub teacher: TeacherSpec,
    /// Samples per prompt. Default 1.
    #[serde(default = "group_size")]
    #[schemars(range(min = 1, max = 1024))]
    pub group_size: u32,
    /// Aggregation of token losses. Default Token.
    #[serde(default)]
    pub loss_aggregation: LossAggregation,
    /// Learns the teacher's distribution over its most likely tokens at each token of given
    /// completions, instead of its log-probabilities of tokens that the policy samples. Rows are
    /// those of `sft`. Default distillation of sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_policy: Option<OffPolicySpec>,
}

/// Off-policy distillation: the loss of a token is the divergence KL(teacher ‖ policy) over the
/// teacher's `topK` most likely tokens, and all others together as one.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OffPolicySpec {
    /// Most likely tokens of the teacher; all of a smaller vocabulary. Default 64.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 1024))]
    pub top_k: u32,
    /// Divisor T of the logits of teacher and policy; the loss is multiplied by T² (Hinton et al.,
    /// arXiv 1503.02531). Default 1.
    #[serde(default = "temperature")]
    #[schemars(range(min = 0.1, max = 100.0))]
    pub temperature: f64,
    /// Sequences per step. Default 64.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
}

/// A teacher. Exactly one of `path` and `server`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct TeacherSpec {
    /// Folder with `config.json`, `tokenizer.json` and `*.safetensors`, as trainer pods see it. Its
    /// vocabulary is that of the policy; its shape may differ. `rljob run` resolves a relative path
    /// against the job file. Learners hold the teacher beside the policy, divided among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Server of the teacher. Learners do not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<TeacherServer>,
}

impl Union for TeacherSpec {
    const MEMBERS: &'static [&'static str] = &["path", "server"];
}

/// SGLang or `rljob-engine` with the teacher, which computes its log-probabilities of each finished
/// sample, at temperature 1. Its tokenizer must be that of the policy: the run compares the tokens
/// of some texts, unless the server has no tokenizer (SGLang with `--skip-tokenizer-init`).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeacherServer {
    /// URL of the server, without `/generate` and without a query.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ?#]+[^ ?#]*$"))]
    pub url: String,
    /// Key of a Secret with a bearer token, read for every request; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Seconds per try. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Then the sample is rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a server that is down, with reason RewardUnavailable of
    /// Ready. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

fn group_size() -> u32 {
    1
}

fn top_k() -> u32 {
    64
}

fn temperature() -> f64 {
    1.0
}

fn batch_size() -> u32 {
    64
}

impl DistillationSpec {
    /// Settings of the policy's loss, which are those of `grpo` with the divergence from the
    /// teacher, in the place of the reference model, as the only reward.
    pub fn policy(&self) -> GrpoSpec {
        GrpoSpec {
            group_size: self.group_size,
            loss_aggregation: self.loss_aggregation,
            reward_normalization: NormalizationSpec {
                mean: NormalizationMean::None,
                scale: NormalizationScale::None,
                ..NormalizationSpec::default()
            },
            kl_coefficient: 1.0,
            kl_estimator: KlEstimator::K1,
            kl_term: KlTerm::Reward,
            ..GrpoSpec::default()
        }
    }
}
