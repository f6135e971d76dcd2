//! Rules across fields: those that the API server checks by CEL, and those that CEL cannot express.

use rljob_crds::algorithm::{Algorithm, DataKind, RolloutSpec};
use rljob_crds::model::InitialWeights;
use rljob_crds::rollout::BatchOrder;
use rljob_crds::{EngineSet, RLJob, RLJobSpec};
use rljob_protocol::version::Version;

use super::{Policy, Problem};

mod algorithm;
mod common;
mod distillation;
mod evaluation;
mod gang;
mod groups;
mod mixture;
mod model_reward;
mod pairs;
mod ppo;
mod prompts;
mod rewards;
mod roles;
mod service_tokens;
mod sources;
mod suites;
mod template;
mod topology;
mod tracking;
mod verifiers;
mod workflow;

use algorithm::{check_algorithm, check_policy};
use common::{COORDINATOR, Role, TRAINER, VERIFIERS, check_optimizer, is_dns_label};
use pairs::check_dpo;
pub(super) use sources::paths;

/// Longest name of a job; the longest suffix of a child still fits the host name of a pod.
const NAME_LIMIT: usize = 40;

/// Longest name of a namespace (RFC 1123).
const NAMESPACE_LIMIT: usize = 63;

/// Every problem of a job that its types do not exclude.
pub(super) fn problems(job: &RLJob, policy: Policy) -> Vec<Problem> {
    let (spec, name) = (&job.spec, job.metadata.name.as_deref());
    let mut problems = Vec::new();
    check_name(name, &mut problems);
    check_namespace(job.metadata.namespace.as_deref(), &mut problems);
    sources::check_model(&spec.model, name, &mut problems);
    sources::check_paths(spec, policy, &mut problems);
    sources::check_volumes(&spec.volumes, policy, &mut problems);
    sources::check_storage(spec, policy, &mut problems);
    sources::check_restore(spec, name, &mut problems);
    let has_agent = spec.agent().is_some();
    check_algorithm(&spec.algorithm, &spec.rewards, &spec.dataset, has_agent, &mut problems);
    check_policy(spec, &mut problems);
    if let Some(ppo) = &spec.algorithm.ppo {
        ppo::check(ppo, spec.training.known_steps().filter(|steps| *steps > 0), &mut problems);
    }
    if let Some(dpo) = &spec.algorithm.dpo {
        check_dpo(dpo, &mut problems);
    }
    check_lora(spec, &mut problems);
    check_lengths(&spec.rollout, &mut problems);
    if let Some(workflow) = &spec.rollout.workflow {
        workflow::check_workflow(workflow, &spec.dataset, &mut problems);
    }
    service_tokens::check_urls(spec, &mut problems);
    roles::check_engines(spec, &mut problems);
    roles::check_inference("inference", &spec.inference, &mut problems);
    roles::check_learners(TRAINER.field, &spec.trainer, &mut problems);
    groups::check_groups(spec, name, policy, &mut problems);
    if spec.algorithm.has_learners() {
        roles::check_weight_sync(spec, &mut problems);
    }
    algorithm::check_training(spec, &mut problems);
    check_batches(spec, &mut problems);
    check_policies(spec, &mut problems);
    gang::check_gang(spec, policy, &mut problems);
    topology::check_topology(spec, &mut problems);
    tracking::check_tracking(spec, &mut problems);
    if let Some(evaluation) = &spec.evaluation {
        evaluation::check_evaluation(spec, evaluation, &mut problems);
    }
    model_reward::check_model_rewards(spec, &mut problems);
    check_pods(spec, policy, &mut problems);
    template::check_isolation(spec, &mut problems);
    problems
}

/// Resources and templates of all roles.
fn check_pods(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    let sets: Vec<EngineSet<'_>> = spec.engine_sets().collect();
    let engines = sets
        .iter()
        .map(|set| (Role::of_engines(&set.field), &set.engines.resources, &set.engines.template));
    let others = [
        (TRAINER, &spec.trainer.resources, &spec.trainer.template),
        (COORDINATOR, &spec.coordinator.resources, &spec.coordinator.template),
    ];
    for (role, resources, template) in engines.chain(others) {
        roles::check_resources(role, resources, problems);
        if let Some(template) = template {
            template::check_template(role, template, &spec.volumes, policy, problems);
        }
    }
    if let Some(verifiers) = &spec.verifiers {
        verifiers::check_verifiers(spec, verifiers, problems);
        roles::check_resources(VERIFIERS, &verifiers.resources, problems);
        if let Some(template) = &verifiers.template {
            template::check_template(VERIFIERS, template, &spec.volumes, policy, problems);
        }
    }
}

fn check_name(name: Option<&str>, problems: &mut Vec<Problem>) {
    let Some(name) = name else {
        return problems.push(Problem::new("metadata.name", "is missing"));
    };
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    if !starts_well || !is_dns_label(name) || name.len() > NAME_LIMIT {
        let message = format!(
            "must be a DNS label of at most {NAME_LIMIT} characters that starts with a letter, \
                found \"{name}\""
        );
        problems.push(Problem::new("metadata.name", message));
    }
}

/// The namespace is a folder of the run directory.
fn check_namespace(namespace: Option<&str>, problems: &mut Vec<Problem>) {
    let Some(namespace) = namespace else { return };
    if !is_dns_label(namespace) || namespace.len() > NAMESPACE_LIMIT {
        let message = format!("must be a DNS label, found \"{namespace}\"");
        problems.push(Problem::new("metadata.namespace", message));
    }
}

fn check_batches(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let minibatches = spec.training.minibatches.max(1);
    let Some(algorithm) = spec.algorithm.resolve() else { return };
    let batch = algorithm.batch_size(&spec.rollout);
    if batch.is_multiple_of(minibatches) {
        return;
    }
    let name = match algorithm {
        Algorithm::Distillation(_) => "distillation.offPolicy",
        _ => algorithm.name(),
    };
    let own = || format!("spec.algorithm.{name}.batchSize");
    let (path, unit) = match algorithm.data() {
        DataKind::Prompts => ("spec.rollout.batchSize".to_owned(), "groups"),
        DataKind::Demonstrations | DataKind::None => (own(), "sequences"),
        DataKind::Pairs => (own(), "pairs"),
    };
    let message = format!(
        "{batch} {unit} cannot be split into training.minibatches = {minibatches} equal parts"
    );
    problems.push(Problem::new(path, message));
}

fn check_lora(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let Some(lora) = &spec.lora else { return };
    if spec.model.weights != InitialWeights::Pretrained {
        let message = "needs model.weights Pretrained: adapters of random weights fit no other \
            model";
        problems.push(Problem::new("spec.lora", message));
    }
    for (index, target) in lora.targets.iter().enumerate() {
        if lora.targets.iter().take(index).any(|earlier| earlier == target) {
            let path = format!("spec.lora.targets[{index}]");
            problems.push(Problem::new(path, format!("{target:?} is a duplicate")));
        }
    }
}

fn check_lengths(rollout: &RolloutSpec, problems: &mut Vec<Problem>) {
    if rollout.min_new_tokens > rollout.max_new_tokens {
        let message = format!("must be at most maxNewTokens = {}", rollout.max_new_tokens);
        problems.push(Problem::new("spec.rollout.minNewTokens", message));
    }
}

fn check_policies(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let most = spec.rollout.max_staleness.saturating_add(1);
    if spec.weight_sync.every_steps > most {
        let message = format!(
            "must be at most rollout.maxStaleness + 1 = {most}: the batch of the next step could \
                not be sampled"
        );
        problems.push(Problem::new("spec.weightSync.everySteps", message));
    }
    if spec.rollout.batch_order == BatchOrder::Finished {
        check_order_of_finish(spec, problems);
    }
    let backoff = &spec.failure_policy.backoff;
    if backoff.initial_seconds > backoff.max_seconds {
        problems.push(Problem::new(
            "spec.failurePolicy.backoff.initialSeconds",
            format!("must not exceed maxSeconds = {}", backoff.max_seconds),
        ));
    }
    // A job without a length has that problem alone.
    let steps = spec.training.known_steps().filter(|steps| *steps > 0);
    check_optimizer("spec.optimizer", &spec.optimizer, steps, problems);
    let location = spec.restore_from.as_ref().and_then(|source| source.location());
    let folder = location.and_then(|path| path.trim_end_matches('/').rsplit('/').next());
    let restored = folder.and_then(|folder| folder.parse::<Version>().ok());
    if let (Some(version), Some(steps)) = (restored, steps)
        && version.step > steps
    {
        let message = format!("{version} has more steps than training.steps = {steps}");
        problems.push(Problem::new("spec.restoreFrom", message));
    }
}

/// Batches of the groups that finish first.
fn check_order_of_finish(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let mut problem = |message| problems.push(Problem::new("spec.rollout.batchOrder", message));
    if spec.rollout.max_staleness == 0 {
        problem(
            "Finished needs maxStaleness of at least 1: without it no group is sampled in place \
                of a late one",
        );
    }
    if spec.training.deterministic {
        problem(
            "Finished depends on timing, which training.deterministic excludes: set one of them",
        );
    }
}

#[cfg(test)]
mod tests;
