//! Command of the main container of a role.

use std::path::Path;

use rljob_crds::names::{
    CONFIG_MOUNT, COORDINATOR_PORT, ENGINE_PORT, RUN_CONFIG_FILE, SUPERVISOR_PORT, TOKENS_MOUNT,
};
use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{EnginePurpose, RunConfig};

use super::{Role, meta, run_config, runner, template};
use crate::served_model::ServedModel;
use crate::validate::ValidatedJob;
use crate::{embedded_engine, sglang};

/// Folder of the programs in the image.
pub const PROGRAMS: &str = "/usr/local/bin";
/// Grace period of trainer pods: the rest of a step and a checkpoint.
pub(super) const TRAINER_GRACE_SECONDS: i64 = 125;
/// Part of the grace period in which a supervisor kills its learners.
const KILL_SECONDS: i64 = 5;

pub(super) fn command(job: &ValidatedJob, role: Role) -> Vec<String> {
    if let Some(engines) = role.engines(&job.spec).filter(|_| is_sglang(job, role)) {
        return sglang_command(job, role, engines);
    }
    let arguments = match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            engine_arguments(job, role)
        }
        Role::Coordinator => {
            let mut arguments = config_arguments();
            arguments.extend([
                format!("--listen=[::]:{COORDINATOR_PORT}"),
                "--address=$(POD_IP)".to_owned(),
            ]);
            arguments
        }
        Role::Trainer | Role::Group => {
            let mut arguments = config_arguments();
            arguments.push(format!("--coordinator={}", meta::coordinator_url(job)));
            // Reports carry the address, so that ranks do not wait for the DNS record of a new pod.
            arguments.extend(["--name=$(POD_NAME)", "--address=$(POD_IP)"].map(ToOwned::to_owned));
            arguments.push(format!("--health-port={SUPERVISOR_PORT}"));
            arguments.push(format!("--grace-seconds={}", supervisor_grace_seconds(job, role)));
            let group = job.spec.frozen_group().filter(|_| role == Role::Group);
            arguments.extend(group.map(|group| format!("--group={}", group.name)));
            arguments
        }
        Role::Verifier => runner::arguments(job),
    };
    let program = match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            embedded_engine::PROGRAM
        }
        Role::Coordinator => "rljob-coordinator",
        Role::Trainer | Role::Group => "rljob-supervisor",
        Role::Verifier => runner::PROGRAM,
    };
    std::iter::once(format!("{PROGRAMS}/{program}")).chain(arguments).collect()
}

/// Time that a supervisor gives its learners after SIGTERM.
fn supervisor_grace_seconds(job: &ValidatedJob, role: Role) -> i64 {
    let template = template::of_role(job, role);
    let set = template.and_then(|template| template.spec.get("terminationGracePeriodSeconds"));
    let seconds = set.and_then(serde_json::Value::as_i64).unwrap_or(TRAINER_GRACE_SECONDS);
    seconds.saturating_sub(KILL_SECONDS).max(0)
}

fn sglang_command(job: &ValidatedJob, role: Role, engines: &InferenceSpec) -> Vec<String> {
    let program = ["python3", "-m", "sglang.launch_server"].map(ToOwned::to_owned);
    let config = run_config(job);
    let model = served_model(&config, role);
    let flags = sglang::arguments(
        &job.spec,
        engines,
        model,
        // The server listens on one family of addresses only.
        "$(POD_IP)",
        Path::new(TOKENS_MOUNT),
    );
    let command = program.into_iter().chain(flags).chain([format!("--port={ENGINE_PORT}")]);
    let service = meta::service_host(&job.namespace, &meta::role_name(job, role));
    let command = sglang::across_pods(engines, &service, command);
    model.when_complete(command)
}

/// The model of engines of a role.
fn served_model(config: &RunConfig, role: Role) -> ServedModel<'_> {
    ServedModel::new(config, role.purpose().unwrap_or(EnginePurpose::Rollouts))
}

pub(super) fn config_arguments() -> Vec<String> {
    vec![format!("--config={CONFIG_MOUNT}/{RUN_CONFIG_FILE}"), format!("--tokens={TOKENS_MOUNT}")]
}

fn engine_arguments(job: &ValidatedJob, role: Role) -> Vec<String> {
    let config = run_config(job);
    let model = served_model(&config, role);
    let tokens = Path::new(TOKENS_MOUNT);
    let mut arguments = embedded_engine::arguments(&job.spec, model, "::", tokens, &job.uid);
    arguments.push(format!("--port={ENGINE_PORT}"));
    arguments
}

/// Whether the pods of a role run SGLang.
pub(super) fn is_sglang(job: &ValidatedJob, role: Role) -> bool {
    role.engines(&job.spec).is_some_and(|engines| engines.engine() == EngineKind::SGLang)
}
