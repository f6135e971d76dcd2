//! Command lines of the processes of a local run. Pure: ports, paths, GPUs and the job are
//! parameters.

use std::ffi::{OsStr, OsString};

use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{EnginePurpose, EngineSet, RLJobSpec, RunConfig};

use super::directory::RunDirectory;
use super::gpus::{ALLOCATOR, Gpus};
use super::role::Role;
use crate::served_model::ServedModel;
use crate::{embedded_engine, sglang};

/// Variable with the names of the GPUs that a process may use.
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";

/// Variables in addition to those of this process.
type Environment = Vec<(&'static str, String)>;

/// Command and environment of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Name of the process and of its log.
    pub name: String,
    pub role: Role,
    /// File name of the program, in the folder of this one.
    pub program: &'static str,
    pub arguments: Vec<OsString>,
    pub environment: Environment,
    /// Whether every start appends `--port` with a free port.
    pub takes_port: bool,
    /// Whether it exits, with all descendants, when its standard input closes. This process holds
    /// the other end of the pipe.
    pub exits_with_stdin: bool,
}

/// Resources of this machine for a run.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Command of the SGLang server, split into words.
    pub engine_command: Vec<String>,
    pub gpus: Gpus,
}

/// All processes of the run, in the order of their start.
pub fn process_specs(
    config: &RunConfig,
    directory: &RunDirectory,
    machine: &Machine,
    coordinator_port: u16,
) -> Vec<ProcessSpec> {
    let spec = &config.spec;
    let mut specs = vec![coordinator(directory, coordinator_port)];
    for EngineSet { purpose, engines, .. } in spec.engine_sets() {
        specs.extend((0..engines.replicas).map(|index| match engines.engine() {
            EngineKind::Embedded => embedded(config, directory, (purpose, index)),
            EngineKind::SGLang => sglang(config, directory, machine, engines, (purpose, index)),
        }));
    }
    specs.extend((0..spec.trainers()).map(|index| {
        let environment = learners(machine, spec, Role::Trainer, index);
        supervisor(directory, coordinator_port, format!("trainer-{index}"), environment)
    }));
    let group = spec.frozen_group();
    let replicas = group.map_or(0, |group| group.replicas);
    specs.extend((0..replicas).zip(group.into_iter().cycle()).map(|(index, group)| {
        let environment = learners(machine, spec, Role::Group, index);
        let name = format!("trainer-{}-{index}", group.name);
        let mut process = supervisor(directory, coordinator_port, name, environment);
        push(&mut process.arguments, "--group", &group.name);
        ProcessSpec { role: Role::Group, ..process }
    }));
    specs
}

fn coordinator(directory: &RunDirectory, port: u16) -> ProcessSpec {
    let mut arguments = common(directory);
    push(&mut arguments, "--listen", format!("127.0.0.1:{port}"));
    ProcessSpec {
        name: "coordinator".to_owned(),
        role: Role::Coordinator,
        program: "rljob-coordinator",
        arguments,
        environment: vec![],
        takes_port: false,
        exits_with_stdin: false,
    }
}

/// The GPUs that a supervisor divides among its learners, and the limit of their memory.
fn learners(machine: &Machine, spec: &RLJobSpec, role: Role, index: i32) -> Environment {
    let visible = (VISIBLE_GPUS, machine.gpus.visible(spec, role, index));
    let memory = machine.gpus.learner_memory(spec).map(|limit| (ALLOCATOR, limit));
    [visible].into_iter().chain(memory).collect()
}

fn supervisor(
    directory: &RunDirectory,
    port: u16,
    name: String,
    environment: Environment,
) -> ProcessSpec {
    let mut arguments = common(directory);
    push(&mut arguments, "--coordinator", format!("https://127.0.0.1:{port}"));
    push(&mut arguments, "--name", &name);
    push(&mut arguments, "--address", "127.0.0.1");
    // Shorter than the session's timeout for its processes.
    push(&mut arguments, "--grace-seconds", "8");
    ProcessSpec {
        name,
        role: Role::Trainer,
        program: "rljob-supervisor",
        arguments,
        environment,
        takes_port: false,
        exits_with_stdin: false,
    }
}

fn embedded(
    config: &RunConfig,
    directory: &RunDirectory,
    (purpose, index): (EnginePurpose, i32),
) -> ProcessSpec {
    let (spec, tokens) = (&config.spec, directory.tokens());
    let model = ServedModel::new(config, purpose);
    let arguments = embedded_engine::arguments(spec, model, "127.0.0.1", &tokens, &config.uid);
    engine((purpose, index), embedded_engine::PROGRAM, arguments, vec![])
}

/// The SGLang server, run by `rljob with-parent` so that it exits with this process.
fn sglang(
    config: &RunConfig,
    directory: &RunDirectory,
    machine: &Machine,
    engines: &InferenceSpec,
    (purpose, index): (EnginePurpose, i32),
) -> ProcessSpec {
    let spec = &config.spec;
    let model = ServedModel::new(config, purpose);
    let flags = sglang::arguments(spec, engines, model, "127.0.0.1", &directory.tokens());
    let memory = machine.gpus.engine_memory(spec);
    let command = machine.engine_command.iter().cloned().chain(flags).chain(memory);
    let command = model.when_complete(command);
    let words = ["with-parent", "--"].map(ToOwned::to_owned).into_iter().chain(command).collect();
    let visible = machine.gpus.visible(spec, Role::Engine(purpose), index);
    let (keep_alive, seconds) = sglang::KEEP_ALIVE;
    let environment = vec![(VISIBLE_GPUS, visible), (keep_alive, seconds.to_owned())];
    ProcessSpec { exits_with_stdin: true, ..engine((purpose, index), "rljob", words, environment) }
}

fn engine(
    (purpose, index): (EnginePurpose, i32),
    program: &'static str,
    arguments: Vec<String>,
    environment: Environment,
) -> ProcessSpec {
    ProcessSpec {
        name: format!("{}-{index}", purpose.role()),
        role: Role::Engine(purpose),
        program,
        arguments: arguments.into_iter().map(OsString::from).collect(),
        environment,
        takes_port: true,
        exits_with_stdin: false,
    }
}

fn common(directory: &RunDirectory) -> Vec<OsString> {
    let mut arguments = Vec::new();
    push(&mut arguments, "--config", directory.run_config());
    push(&mut arguments, "--tokens", directory.tokens());
    arguments
}

fn push(arguments: &mut Vec<OsString>, name: &str, value: impl AsRef<OsStr>) {
    arguments.push(name.into());
    arguments.push(value.as_ref().to_owned());
}

#[cfg(test)]
mod tests;
