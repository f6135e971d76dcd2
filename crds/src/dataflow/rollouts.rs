//! Calls of a step before those of the learners: weight sync, rollouts and the batch.

use super::call::{Call, Kind, Model, Phase, Workers};
use super::data::Data;
use crate::RLJobSpec;
use crate::algorithm::Algorithm;
use crate::reward::{RewardSite, RewardSpec};
use crate::weight_sync::WeightSyncMethod;
use crate::workflow::{ToolSpec, WorkflowSpec};

/// The calls of an algorithm whose completions engines sample, up to finished samples.
pub fn calls(spec: &RLJobSpec) -> Vec<Call> {
    let mut calls = vec![sync(spec), generate(spec)];
    calls.extend(spec.rewards.iter().map(|reward| of_reward(spec, reward)));
    calls.extend(turns(spec));
    calls
}

/// The finished samples of the rollouts, a served teacher's numbers, and the batch.
pub fn batch(spec: &RLJobSpec, algorithm: Algorithm<'_>, calls: &[Call]) -> Vec<Call> {
    let inputs = finished(calls).chain([Data::BehaviorLogprobs]);
    let samples = Call::new("assemble", Kind::Transform, Workers::Coordinator, Phase::Rollouts)
        .with(inputs, [Data::Samples]);
    let teacher = algorithm.served_teacher().map(|teacher| {
        let server = || Workers::Server("teacher".to_owned());
        let workers = teacher.on_engines().map_or_else(server, |_| Workers::TeacherEngines);
        Call::new("infer teacher", Kind::Inference, workers, Phase::Rollouts)
            .of(Model::Teacher)
            .with([Data::Samples], [Data::TeacherLogprobs])
    });
    let logprobs = teacher.as_ref().map(|_| Data::TeacherLogprobs);
    let replaced = spec.rollout.dynamic_sampling.as_ref();
    let note = replaced.map(|_| "prompt groups with equal rewards are replaced".to_owned());
    let pack = pack([Data::Samples].into_iter().chain(logprobs)).noting(note);
    [Some(samples), teacher, Some(pack)].into_iter().flatten().collect()
}

/// The coordinator's batch.
pub fn pack(inputs: impl IntoIterator<Item = Data>) -> Call {
    Call::new("pack", Kind::Transform, Workers::Coordinator, Phase::Batch)
        .with(inputs, [Data::Batch])
}

/// The results of an evaluation.
pub fn estimate(calls: &[Call]) -> Call {
    Call::new("estimate", Kind::Transform, Workers::Coordinator, Phase::Rollouts)
        .with(finished(calls), [Data::Estimates])
}

/// What the calls make of a sample, besides log-probabilities.
fn finished(calls: &[Call]) -> impl Iterator<Item = Data> {
    let wanted = [
        Data::Completions,
        Data::TurnMessages,
        Data::Rewards,
        Data::EnvironmentRewards,
        Data::AgentRewards,
    ];
    wanted.into_iter().filter(|data| calls.iter().any(|call| call.outputs.contains(data)))
}

fn sync(spec: &RLJobSpec) -> Call {
    let (workers, note) = if spec.algorithm.has_learners() {
        let method = match spec.weight_sync_method() {
            WeightSyncMethod::Disk => "files in the run directory",
            WeightSyncMethod::Distributed => "broadcast",
        };
        let interval = spec.weight_sync.every_steps;
        let every = if interval > 1 { format!(", every {interval} steps") } else { String::new() };
        (Workers::Learners, format!("{method}{every}"))
    } else {
        (Workers::Engines, "read from the model folder".to_owned())
    };
    Call { seconds: Phase::Sync.seconds(), ..Call::new("sync", Kind::Sync, workers, Phase::Sync) }
        .of(Model::Policy)
        .with([Data::PolicyWeights], [Data::EngineWeights])
        .noting(Some(note))
}

fn generate(spec: &RLJobSpec) -> Call {
    let workflow = spec.rollout.workflow.as_ref();
    let is_agent = workflow.is_some_and(|workflow| workflow.agent.is_some());
    let first = if is_agent { Data::AgentRequests } else { Data::Prompts };
    // An agent's later requests are of the same kind as its first one.
    let later = workflow.filter(|_| !is_agent).map(|_| Data::TurnMessages);
    let note =
        workflow.and_then(WorkflowSpec::max_turns).map(|turns| format!("up to {turns} turns"));
    Call::new("generate", Kind::Generate, Workers::Engines, Phase::Rollouts)
        .of(Model::Policy)
        .with([first, Data::EngineWeights], [Data::Completions, Data::BehaviorLogprobs])
        .later(later)
        .noting(note)
}

/// Where programs of rewards, tools, environments and agents run.
fn runner(spec: &RLJobSpec) -> Workers {
    if spec.verifiers.is_some() { Workers::VerifierPods } else { Workers::RewardRunner }
}

fn of_reward(spec: &RLJobSpec, reward: &RewardSpec) -> Call {
    let name = format!("reward {}", reward.name);
    let server = || Workers::Server(name.clone());
    let is_served = || reward.model.as_ref().is_some_and(|model| model.served().is_some());
    let (workers, model) = match reward.kinds().next().map(|kind| kind.site) {
        Some(RewardSite::Model) if is_served() => (Workers::RewardEngines, Some(Model::Reward)),
        Some(RewardSite::Model) => (server(), Some(Model::Reward)),
        Some(RewardSite::Server) => (server(), None),
        Some(RewardSite::Runner) => (runner(spec), None),
        Some(RewardSite::Coordinator) | None => (Workers::Coordinator, None),
    };
    let call = Call::new(name, Kind::Reward, workers, Phase::Rollouts)
        .with([Data::Prompts, Data::Completions], [Data::Rewards]);
    Call { model, ..call }
}

/// The calls that answer a completion.
fn turns(spec: &RLJobSpec) -> Vec<Call> {
    let turn = |name: &str, workers| Call::new(name, Kind::Turn, workers, Phase::Rollouts);
    let rewards = (!spec.rewards.is_empty()).then_some(Data::Rewards);
    let scored = || [Data::Completions].into_iter().chain(rewards);
    match spec.rollout.workflow.as_ref() {
        Some(WorkflowSpec { multi_turn: Some(_), .. }) => {
            vec![turn("feedback", Workers::Coordinator).with(scored(), [Data::TurnMessages])]
        }
        Some(WorkflowSpec { environment: Some(environment), .. }) => {
            let outputs = [Data::TurnMessages, Data::EnvironmentRewards];
            let server = || Workers::Server("environment".to_owned());
            let workers = environment.command.as_ref().map_or_else(server, |_| runner(spec));
            vec![turn("environment", workers).with(scored(), outputs)]
        }
        Some(WorkflowSpec { tools: Some(tools), .. }) => {
            tools.tools.iter().map(|tool| of_tool(spec, tool)).collect()
        }
        Some(WorkflowSpec { agent: Some(_), .. }) => {
            let outputs = [Data::AgentRequests, Data::TurnMessages, Data::AgentRewards];
            // Programs start once engines can answer their requests.
            let inputs = [Data::Prompts, Data::EngineWeights];
            let agent = turn("agent", runner(spec)).with(inputs, outputs);
            vec![agent.later([Data::Completions])]
        }
        _ => Vec::new(),
    }
}

fn of_tool(spec: &RLJobSpec, tool: &ToolSpec) -> Call {
    let name = format!("tool {}", tool.name);
    let is_program = tool.command.is_some();
    let workers = if is_program { runner(spec) } else { Workers::Server(name.clone()) };
    Call::new(name, Kind::Turn, workers, Phase::Rollouts)
        .with([Data::Completions], [Data::TurnMessages])
}
