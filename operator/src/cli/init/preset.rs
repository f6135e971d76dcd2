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
    /// REINFORCE++ with the mean of a group as its baseline. On the data of `make quickstart`.
    ReinforcePlusPlusBaseline,
    /// LitePPO: mean of the group, deviation of the batch. On the data of `make quickstart`.
    LitePpo,
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
    /// Truncated importance sampling: weights of the behavior policy are clamped. On the data of
    /// `make quickstart`.
    TruncatedImportanceSampling,
    /// M2PO: the tokens with the largest squared log-ratios are masked. On the data of `make
    /// quickstart`.
    M2po,
    /// PPO with a critic, on the data of `make quickstart`.
    Ppo,
    /// PPO with a value head on the policy, on the data of `make quickstart`.
    PpoValueHead,
    /// PPO with a λ that grows with the length of a completion, on the data of `make quickstart`.
    AdaptiveLambda,
    /// PPO with a turn as the time step, on the data of `make quickstart`.
    PpoTurns,
    /// GRPO with an entropy bonus. On the data of `make quickstart`.
    Entropy,
    /// GRPO with two passes over the samples of a step. On the data of `make quickstart`.
    Epochs,
    /// DPO on pairs of completions, on the data of `make quickstart`.
    Dpo,
    /// IPO: the same up to a margin, on the data of `make quickstart`.
    Ipo,
    /// ORPO: pairs of completions without a reference model, on the data of `make quickstart`.
    Orpo,
    /// A reward model from pairs of completions, on the data of `make quickstart`.
    RewardModel,
    /// GRPO with the score of a reward model on engines of the job, on the data of `make
    /// quickstart`.
    ModelReward,
    /// The same with a reward model that a server has.
    ServedRewardModel,
    /// GRPO with a Python function as a further reward, in a ConfigMap.
    PythonReward,
    /// GRPO with the reward of a Python function, without GPUs, on the data of `make quickstart`.
    PythonRewardCpu,
    /// GRPO with the reward of a program, on the data of `make quickstart`.
    CommandReward,
    /// GRPO with the reward of an HTTP server, on the data of `make quickstart`.
    HttpReward,
    /// On-policy distillation from a teacher, on the data of `make quickstart`.
    Distillation,
    /// The same from a teacher on engines of the job.
    TeacherEngines,
    /// Distillation of a teacher's top tokens at given completions, on the data of `make
    /// quickstart`.
    OffPolicyDistillation,
    /// GRPO with a teacher beside the rewards, on the data of `make quickstart`.
    JointDistillation,
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
    /// Two jobs on additions: SFT, then GRPO of an agent with a tool that runs Python. Needs the
    /// data of manifests/samples/tools and the program in manifests/samples/agent.
    CodeAgent,
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

/// The samples of presets: path and name of the last job.
macro_rules! samples {
    ($($preset:ident: $path:literal, $job:literal;)*) => {
        impl Preset {
            pub(super) fn sample(self) -> Sample {
                let [path, job, text] = match self {
                    $(Self::$preset => [
                        $path,
                        $job,
                        include_str!(concat!("../../../../manifests/samples/", $path, ".yaml")),
                    ],)*
                };
                Sample { path, job, text }
            }
        }
    };
}

samples! {
    Quickstart: "quickstart", "quickstart";
    Grpo: "gsm8k-grpo", "gsm8k-grpo";
    Async: "gsm8k-async", "gsm8k-async";
    Code: "code", "code";
    Sft: "sft", "sft";
    Cpu: "gsm8k-smollm2", "gsm8k-smollm2";
    MultiGpu: "multi-gpu", "multi-gpu";
    MultiNodeEngine: "multi-node-engine", "multi-node-engine";
    Spot: "spot", "spot";
    Bucket: "bucket", "bucket";
    Dapo: "algorithms/dapo", "dapo";
    DrGrpo: "algorithms/dr-grpo", "dr-grpo";
    Rloo: "algorithms/rloo", "rloo";
    ReinforcePlusPlus: "algorithms/reinforce-plus-plus", "reinforce-plus-plus";
    ReinforcePlusPlusBaseline:
        "algorithms/reinforce-plus-plus-baseline", "reinforce-plus-plus-baseline";
    LitePpo: "algorithms/lite-ppo", "lite-ppo";
    Gspo: "algorithms/gspo", "gspo";
    GspoToken: "algorithms/gspo-token", "gspo-token";
    Cispo: "algorithms/cispo", "cispo";
    Sapo: "algorithms/sapo", "sapo";
    Gpg: "algorithms/gpg", "gpg";
    Decoupled: "algorithms/decoupled", "decoupled";
    Icepop: "algorithms/icepop", "icepop";
    Kpop: "algorithms/kpop", "kpop";
    TruncatedImportanceSampling:
        "algorithms/truncated-importance-sampling", "truncated-importance-sampling";
    M2po: "algorithms/m2po", "m2po";
    Ppo: "algorithms/ppo", "ppo";
    PpoValueHead: "algorithms/ppo-value-head", "ppo-value-head";
    AdaptiveLambda: "algorithms/adaptive-lambda", "adaptive-lambda";
    PpoTurns: "algorithms/ppo-turns", "ppo-turns";
    Entropy: "algorithms/entropy", "entropy";
    Epochs: "algorithms/epochs", "epochs";
    Dpo: "algorithms/dpo", "dpo";
    Ipo: "algorithms/ipo", "ipo";
    Orpo: "algorithms/orpo", "orpo";
    RewardModel: "algorithms/reward-model", "reward-model";
    ModelReward: "model-reward", "model-reward";
    ServedRewardModel: "served-reward-model", "served-reward-model";
    PythonReward: "python-reward", "python-reward";
    PythonRewardCpu: "python-reward-cpu", "python-reward-cpu";
    CommandReward: "command-reward", "command-reward";
    HttpReward: "http-reward", "http-reward";
    Distillation: "algorithms/distillation", "distillation";
    TeacherEngines: "algorithms/teacher-engines", "teacher-engines";
    OffPolicyDistillation: "algorithms/off-policy-distillation", "off-policy-distillation";
    JointDistillation: "algorithms/joint-distillation", "joint-distillation";
    Lora: "algorithms/lora", "lora";
    MultiTurn: "multi-turn", "multi-turn";
    TwoTurns: "two-turns", "two-turns";
    Environment: "environment", "environment";
    EnvironmentCommand: "environment-command", "environment-command";
    Agent: "agent", "agent";
    AgentPods: "agent-pods", "agent-pods";
    CodeAgent: "code-agent", "code-agent";
    Verifiers: "verifiers", "verifiers";
    Evaluation: "evaluation", "math-500";
    Suites: "suites", "suites";
    EvaluationEngines: "evaluation-engines", "evaluation-engines";
    EvaluationEnginesCpu: "evaluation-engines-cpu", "evaluation-engines-cpu";
    Ab: "ab", "ab";
    Mixture: "mixture", "mixture";
    Tools: "tools", "tools";
    ToolsCommand: "tools-command", "tools-command";
    ToolsMcp: "tools-mcp", "tools-mcp";
    ToolsByRow: "tools-by-row", "tools-by-row";
    Curriculum: "curriculum", "curriculum";
    ServedTeacher: "served-teacher", "served-teacher";
    HybridSharding: "hybrid-sharding", "hybrid-sharding";
    TrainerGroup: "trainer-group", "trainer-group";
    TrainerGroupCpu: "trainer-group-cpu", "trainer-group-cpu";
    Gang: "gang", "gang";
    Topology: "topology", "topology";
    Queue: "kueue", "queued";
}

impl Preset {
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
