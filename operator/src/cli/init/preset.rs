//! Presets of `rljob init`: the samples of the repository, which tests apply to an API server.

use std::path::Path;

use anyhow::{anyhow, ensure};
use clap::ValueEnum;

use crate::local::jobs::parse_objects;
use crate::validate::{Policy, validate};

/// A job file to start from.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Two small jobs on additions, for one machine: SFT, then GRPO. Needs the data of
    /// `make quickstart`.
    Quickstart,
    /// GRPO on GSM8K with Qwen2.5-1.5B, one GPU each for engine and learner; from the Hugging Face
    /// Hub.
    Grpo,
    /// Asynchronous GRPO: engines sample up to 4 steps ahead.
    Async,
    /// Supervised fine-tuning on demonstrations, without engines.
    Sft,
    /// GRPO on GSM8K with SmolLM2-135M, small enough for a CPU.
    Cpu,
    /// Two engines with tensor parallelism, and a trainer pod with FSDP over four GPUs.
    MultiGpu,
    /// SGLang engines that span pods.
    MultiNodeEngine,
    /// Programs as answers, which the reward runs on tests.
    Code,
    /// Engines on preemptible nodes, and failure rules.
    Spot,
    /// Checkpoints and exports in an S3-compatible bucket.
    Bucket,
    /// DAPO: a higher upper clip, groups with equal rewards replaced. On the data of `make
    /// quickstart`.
    Dapo,
    /// Dr. GRPO: no division by the standard deviation or the length. On the data of `make
    /// quickstart`.
    DrGrpo,
    /// RLOO: the baseline of a sample is the mean of the others. On the data of `make quickstart`.
    Rloo,
    /// REINFORCE++: one sample per prompt, normalized over the batch. On the data of `make
    /// quickstart`.
    ReinforcePlusPlus,
    /// GSPO: the importance ratio of the whole completion. On the data of `make quickstart`.
    Gspo,
    /// GSPO-token: the same with advantages that differ by token. On the data of `make quickstart`.
    GspoToken,
    /// CISPO: clipped tokens keep a gradient. On the data of `make quickstart`.
    Cispo,
    /// SAPO: a smooth gate instead of clipping. On the data of `make quickstart`.
    Sapo,
    /// GPG: the policy gradient without a ratio. On the data of `make quickstart`.
    Gpg,
    /// Decoupled PPO: samples of weights that are up to two steps older. On the data of `make
    /// quickstart`.
    Decoupled,
    /// IcePop: tokens outside bounds of their ratio are masked. On the data of `make quickstart`.
    Icepop,
    /// KPop: the same with bounds of a binary KL divergence. On the data of `make quickstart`.
    Kpop,
    /// M2PO: the tokens with the largest squared log-ratios are masked. On the data of `make
    /// quickstart`.
    M2po,
    /// PPO with a critic, on the data of `make quickstart`.
    Ppo,
    /// PPO with a value head on the policy, on the data of `make quickstart`.
    PpoValueHead,
    /// DPO on pairs of completions, on the data of `make quickstart`.
    Dpo,
    /// A reward model from pairs of completions, on the data of `make quickstart`.
    RewardModel,
    /// GRPO with the score of a served reward model, on the data of `make quickstart`.
    ModelReward,
    /// On-policy distillation from a teacher, on the data of `make quickstart`.
    Distillation,
    /// Distillation of a teacher's top tokens at given completions, on the data of `make
    /// quickstart`.
    OffPolicyDistillation,
    /// GRPO with LoRA, on the data of `make quickstart`.
    Lora,
    /// Two jobs on additions: SFT, then GRPO with a second attempt after feedback. Needs the data
    /// of `make quickstart`.
    MultiTurn,
    /// Two jobs on additions: SFT, then GRPO on a task that only a second turn can solve. Needs the
    /// data of `make quickstart`.
    TwoTurns,
    /// GRPO whose rewards and messages come from an HTTP server, on the data of `make quickstart`.
    Environment,
    /// The same with a program for each episode.
    EnvironmentCommand,
    /// GRPO whose completions a program requests through a proxy of OpenAI's shape.
    Agent,
    /// The same with programs in pods with a custom image.
    AgentPods,
    /// Rewards that run programs, in verifier pods.
    Verifiers,
    /// Evaluation without training.
    Evaluation,
    /// Evaluation on several suites without training.
    Suites,
    /// GRPO with SGLang engines that only evaluate.
    EvaluationEngines,
    /// The same without GPUs, from the weights of the quick start.
    EvaluationEnginesCpu,
    /// Two runs from the same weights, which `rljob compare` compares.
    Ab,
    /// GRPO on a mixture of two datasets, filtered by pass rate.
    Mixture,
    /// Two jobs on additions: SFT, then GRPO with a tool. Needs the data and the server in
    /// manifests/samples/tools.
    Tools,
    /// The same with a tool that is a program.
    ToolsCommand,
    /// The same with a tool of an MCP server.
    ToolsMcp,
    /// The same with a tool that only some rows offer.
    ToolsByRow,
    /// GRPO that skips rows which the policy solves too often or too rarely.
    Curriculum,
    /// Distillation from a teacher that a server has.
    ServedTeacher,
    /// A replica of the model in each trainer pod, divided among its GPUs.
    HybridSharding,
    /// A reference model in a group of the trainer, on separate GPUs.
    TrainerGroup,
    /// The same without GPUs, from the weights of the quick start.
    TrainerGroupCpu,
    /// Engines and trainers that get nodes all together or not at all.
    Gang,
    /// Trainers that share a zone, with engines near them.
    Topology,
    /// A job in a queue of Kueue.
    Queue,
}

/// A sample of the repository.
pub(super) struct Sample {
    /// Path in the folder of samples, without its extension, which comments name.
    pub(super) path: &'static str,
    /// Name of its last job.
    job: &'static str,
    text: &'static str,
}

impl Preset {
    pub(super) fn sample(self) -> Sample {
        macro_rules! sample {
            ($name:literal) => {
                sample!($name, $name)
            };
            ($path:literal, $job:literal) => {
                Sample {
                    path: $path,
                    job: $job,
                    text: include_str!(concat!("../../../../manifests/samples/", $path, ".yaml")),
                }
            };
        }
        match self {
            Self::Quickstart => sample!("quickstart"),
            Self::Grpo => sample!("gsm8k-grpo"),
            Self::Async => sample!("gsm8k-async"),
            Self::Code => sample!("code"),
            Self::Sft => sample!("sft"),
            Self::Cpu => sample!("gsm8k-smollm2"),
            Self::MultiGpu => sample!("multi-gpu"),
            Self::MultiNodeEngine => sample!("multi-node-engine"),
            Self::Spot => sample!("spot"),
            Self::Bucket => sample!("bucket"),
            Self::Dapo => sample!("algorithms/dapo", "dapo"),
            Self::DrGrpo => sample!("algorithms/dr-grpo", "dr-grpo"),
            Self::Rloo => sample!("algorithms/rloo", "rloo"),
            Self::ReinforcePlusPlus => {
                sample!("algorithms/reinforce-plus-plus", "reinforce-plus-plus")
            }
            Self::Gspo => sample!("algorithms/gspo", "gspo"),
            Self::GspoToken => sample!("algorithms/gspo-token", "gspo-token"),
            Self::Cispo => sample!("algorithms/cispo", "cispo"),
            Self::Sapo => sample!("algorithms/sapo", "sapo"),
            Self::Gpg => sample!("algorithms/gpg", "gpg"),
            Self::Decoupled => sample!("algorithms/decoupled", "decoupled"),
            Self::Icepop => sample!("algorithms/icepop", "icepop"),
            Self::Kpop => sample!("algorithms/kpop", "kpop"),
            Self::M2po => sample!("algorithms/m2po", "m2po"),
            Self::Ppo => sample!("algorithms/ppo", "ppo"),
            Self::PpoValueHead => sample!("algorithms/ppo-value-head", "ppo-value-head"),
            Self::Dpo => sample!("algorithms/dpo", "dpo"),
            Self::RewardModel => sample!("algorithms/reward-model", "reward-model"),
            Self::ModelReward => sample!("model-reward"),
            Self::Distillation => sample!("algorithms/distillation", "distillation"),
            Self::OffPolicyDistillation => {
                sample!("algorithms/off-policy-distillation", "off-policy-distillation")
            }
            Self::Lora => sample!("algorithms/lora", "lora"),
            Self::MultiTurn => sample!("multi-turn"),
            Self::TwoTurns => sample!("two-turns"),
            Self::Environment => sample!("environment"),
            Self::EnvironmentCommand => sample!("environment-command"),
            Self::Agent => sample!("agent"),
            Self::AgentPods => sample!("agent-pods"),
            Self::Verifiers => sample!("verifiers"),
            Self::Evaluation => sample!("evaluation", "math-500"),
            Self::Suites => sample!("suites"),
            Self::EvaluationEngines => sample!("evaluation-engines"),
            Self::EvaluationEnginesCpu => sample!("evaluation-engines-cpu"),
            Self::Ab => sample!("ab"),
            Self::Mixture => sample!("mixture"),
            Self::Tools => sample!("tools"),
            Self::ToolsCommand => sample!("tools-command"),
            Self::ToolsMcp => sample!("tools-mcp"),
            Self::ToolsByRow => sample!("tools-by-row"),
            Self::Curriculum => sample!("curriculum"),
            Self::ServedTeacher => sample!("served-teacher"),
            Self::HybridSharding => sample!("hybrid-sharding"),
            Self::TrainerGroup => sample!("trainer-group"),
            Self::TrainerGroupCpu => sample!("trainer-group-cpu"),
            Self::Gang => sample!("gang"),
            Self::Topology => sample!("topology"),
            Self::Queue => sample!("kueue", "queued"),
        }
    }

    /// The job file, whose comments name it `file`. Another name of the job is possible if there is
    /// one job.
    pub(super) fn text(self, file: &str, name: Option<&str>) -> anyhow::Result<String> {
        let Sample { path, job, text } = self.sample();
        let text = text.replace(&format!("manifests/samples/{path}.yaml"), file);
        let Some(name) = name else { return Ok(text) };
        ensure!(
            text.matches("kind: RLJob").count() == 1,
            "the preset has several jobs: omit --name, and edit the names"
        );
        // Commands in the comments name the job, too.
        let text = text
            .replace(&format!("  name: {job}\n"), &format!("  name: {name}\n"))
            .replace(&format!("rljob/{job} "), &format!("rljob/{name} "))
            .replace(&format!("<namespace>/{job}/"), &format!("<namespace>/{name}/"))
            .replace(&format!("rljob: {{name: {job}}}"), &format!("rljob: {{name: {name}}}"));
        let jobs = parse_objects(Path::new(file), &text, &[])?;
        for job in &jobs {
            validate(job, Policy::LOCAL).map_err(|error| anyhow!("--name: {error}"))?;
        }
        Ok(text)
    }
}
