//! Command lines of the processes of a local run. Pure: ports, paths, GPUs and the job are
//! parameters.

use std::ffi::{OsStr, OsString};

use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{EnginePurpose, EngineSet, RLJobSpec, RunConfig};

use super::directory::RunDirectory;
use super::gpus::Gpus;
use super::role::Role;
use crate::served_model::ServedModel;
use crate::{embedded_engine, sglang};

/// Variable with the names of the GPUs that a process may use.
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";
/// Variable with the settings of libtorch's allocator of GPU memory.
const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

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
mod tests {
    use rljob_crds::names::{SGLANG_CONFIG_FILE, TOKEN_ENGINE_API};
    use rljob_crds::roles::SGLangSpec;
    use serde_json::json;

    use super::*;
    use crate::desired::run_config;
    use crate::validate::test_support::{validated, with_spec};

    #[test]
    fn every_process_sees_its_own_gpus_only() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
        let job = |engine: u32, trainer: u32| {
            with_spec(&json!({
                "inference": {"sglang": {}, "resources": limits(engine)},
                "trainer": {"processesPerReplica": null, "resources": limits(trainer)},
            }))
        };
        let names = ["0", "1", "2", "3"].map(ToOwned::to_owned).to_vec();
        let gpus = Gpus { names, engine_percent: None };
        let machine = Machine { engine_command: vec!["engine".to_owned()], gpus };
        for (job, expected) in [(job(1, 2), ["0", "1", "2,3"]), (job(0, 0), ["", "", ""])] {
            let specs = process_specs(&run_config(&job), &directory, &machine, 1234);
            let environments: Vec<_> = specs.into_iter().map(|spec| spec.environment).collect();
            let keep_alive = ("SGLANG_TIMEOUT_KEEP_ALIVE", "3600".to_owned());
            let mut visible =
                expected.map(|names| vec![("CUDA_VISIBLE_DEVICES", names.to_owned())]);
            visible[..2].iter_mut().for_each(|engine| engine.push(keep_alive.clone()));
            assert_eq!(environments, [&[vec![]], &visible[..]].concat());
        }
    }

    #[test]
    fn processes_that_share_a_gpu_have_a_share_of_its_memory() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let gpu = json!({"limits": {"nvidia.com/gpu": 1}});
        let mut job = with_spec(&json!({
            "inference": {"sglang": {}, "replicas": 1, "resources": gpu},
            "trainer": {"processesPerReplica": null, "resources": gpu},
        }));
        let gpus = Gpus { names: vec!["0".to_owned()], engine_percent: Some(40) };
        let machine = Machine { engine_command: vec!["engine".to_owned()], gpus };
        let specs = process_specs(&run_config(&job), &directory, &machine, 1234);
        let visible = ("CUDA_VISIBLE_DEVICES", "0".to_owned());
        assert_eq!(specs[1].environment[0], visible);
        assert_eq!(specs[1].arguments.last(), Some(&"--mem-fraction-static=0.34".into()));
        let memory = ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.60".to_owned());
        assert_eq!(specs[2].environment, [visible, memory]);
        // Engines on CPUs share no GPU.
        job.spec.inference.resources = k8s_openapi::api::core::v1::ResourceRequirements::default();
        let specs = process_specs(&run_config(&job), &directory, &machine, 1234);
        assert_eq!(specs[2].environment.len(), 1);
        assert!(!specs[1].arguments.contains(&"--mem-fraction-static=0.34".into()));
    }

    #[test]
    fn a_group_has_separate_supervisors() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let job = with_spec(&json!({
            "algorithm": {"grpo": {"klCoefficient": 0.1}}, "inference": {"replicas": 1},
            "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"], "replicas": 2}]},
        }));
        let all = process_specs(&run_config(&job), &directory, &Machine::default(), 1234);
        let names: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
        let expected =
            ["coordinator", "inference-0", "trainer-0", "trainer-frozen-0", "trainer-frozen-1"];
        assert_eq!(names, expected);
        assert!(all[4].arguments.ends_with(&["--group".into(), "frozen".into()]));
        assert_eq!((all[2].role, all[3].role), (Role::Trainer, Role::Group));
    }

    #[test]
    fn engines_of_a_reward_model_are_processes_that_serve_its_folder() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let model = json!({"path": "/judge", "engines": {"replicas": 2}, "text": "{{completion}}"});
        let job = with_spec(&json!({
            "inference": {"replicas": 1}, "rewards": [{"name": "scored", "model": model}],
        }));
        let all = process_specs(&run_config(&job), &directory, &Machine::default(), 1234);
        let names: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["coordinator", "inference-0", "reward-0", "reward-1", "trainer-0"]);
        assert_eq!(all[2].role, Role::Engine(EnginePurpose::Reward));
        let flags = ["--model-path=/judge", "--is-embedding"].map(OsString::from);
        assert!(flags.iter().all(|flag| all[2].arguments.contains(flag)), "{:?}", all[2]);
        assert!(!all[1].arguments.contains(&flags[1]), "{:?}", all[1]);
    }

    #[test]
    fn sglang_command_has_the_runs_flags_and_no_key() {
        let runs = tempfile::tempdir().unwrap();
        let directory = RunDirectory::open(runs.path()).unwrap();
        let secrets = directory.create_tokens("uid").unwrap().operator;
        let mut job = validated();
        job.spec.inference.sglang = Some(SGLangSpec::default());
        let machine = Machine {
            engine_command: ["python3", "-m", "sglang.launch_server"]
                .map(ToOwned::to_owned)
                .to_vec(),
            gpus: Gpus::default(),
        };
        let all = process_specs(&run_config(&job), &directory, &machine, 1234);
        let names: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["coordinator", "inference-0", "inference-1", "trainer-0"]);
        let engine = &all[1];
        assert_eq!((engine.program, engine.takes_port), ("rljob", true));
        assert_eq!(
            engine.arguments[..6],
            [
                "with-parent",
                "--",
                "python3",
                "-m",
                "sglang.launch_server",
                "--model-path=/models/tiny"
            ]
        );
        let config = directory.token(SGLANG_CONFIG_FILE);
        assert_eq!(
            engine.arguments[engine.arguments.len() - 2..],
            [OsString::from("--config"), config.clone().into()]
        );
        let api_key = std::fs::read_to_string(directory.token(TOKEN_ENGINE_API)).unwrap();
        assert!(std::fs::read_to_string(config).unwrap().contains(&api_key));
        let words: String = all
            .iter()
            .flat_map(|spec| &spec.arguments)
            .map(|word| word.to_string_lossy())
            .collect();
        assert!(!words.contains(&api_key) && !words.contains(&secrets));
    }
}
