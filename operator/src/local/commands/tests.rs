//! Processes of a run with their GPUs, flags and keys.

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
    let gpus = Gpus { names, ..Gpus::default() };
    let machine = Machine { engine_command: vec!["engine".to_owned()], gpus };
    for (job, expected) in [(job(1, 2), ["0", "1", "2,3"]), (job(0, 0), ["", "", ""])] {
        let specs = process_specs(&run_config(&job), &directory, &machine, 1234);
        let environments: Vec<_> = specs.into_iter().map(|spec| spec.environment).collect();
        let keep_alive = ("SGLANG_TIMEOUT_KEEP_ALIVE", "3600".to_owned());
        let mut visible = expected.map(|names| vec![("CUDA_VISIBLE_DEVICES", names.to_owned())]);
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
    let gpus = Gpus {
        names: vec!["0".to_owned()],
        engine_percent: Some(40),
        allocator: Some("expandable_segments:True".to_owned()),
    };
    let machine = Machine { engine_command: vec!["engine".to_owned()], gpus };
    let specs = process_specs(&run_config(&job), &directory, &machine, 1234);
    let visible = ("CUDA_VISIBLE_DEVICES", "0".to_owned());
    assert_eq!(specs[1].environment[0], visible);
    assert_eq!(specs[1].arguments.last(), Some(&"--mem-fraction-static=0.34".into()));
    let memory = "expandable_segments:True,per_process_memory_fraction:0.60".to_owned();
    let memory = ("PYTORCH_CUDA_ALLOC_CONF", memory);
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
fn engines_of_a_teacher_are_processes_that_serve_its_folder() {
    let runs = tempfile::tempdir().unwrap();
    let directory = RunDirectory::open(runs.path()).unwrap();
    let teacher = json!({"path": "/teacher", "engines": {"replicas": 2}});
    let job = with_spec(&json!({
        "inference": {"replicas": 1}, "rewards": [],
        "algorithm": {"grpo": null, "distillation": {"teacher": teacher}},
    }));
    let all = process_specs(&run_config(&job), &directory, &Machine::default(), 1234);
    let names: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["coordinator", "inference-0", "teacher-0", "teacher-1", "trainer-0"]);
    assert_eq!(all[2].role, Role::Engine(EnginePurpose::Teacher));
    assert!(all[2].arguments.contains(&"--model-path=/teacher".into()), "{:?}", all[2]);
    assert!(!all[2].arguments.contains(&"--is-embedding".into()), "{:?}", all[2]);
}

#[test]
fn sglang_command_has_the_runs_flags_and_no_key() {
    let runs = tempfile::tempdir().unwrap();
    let directory = RunDirectory::open(runs.path()).unwrap();
    let secrets = directory.create_tokens("uid").unwrap().operator;
    let mut job = validated();
    job.spec.inference.sglang = Some(SGLangSpec::default());
    let machine = Machine {
        engine_command: ["python3", "-m", "sglang.launch_server"].map(ToOwned::to_owned).to_vec(),
        gpus: Gpus::default(),
    };
    let all = process_specs(&run_config(&job), &directory, &machine, 1234);
    let names: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["coordinator", "inference-0", "inference-1", "trainer-0"]);
    let engine = &all[1];
    assert_eq!((engine.program, engine.takes_port), ("rljob", true));
    assert_eq!(
        engine.arguments[..6],
        ["with-parent", "--", "python3", "-m", "sglang.launch_server", "--model-path=/models/tiny"]
    );
    let config = directory.token(SGLANG_CONFIG_FILE);
    assert_eq!(
        engine.arguments[engine.arguments.len() - 2..],
        [OsString::from("--config"), config.clone().into()]
    );
    let api_key = std::fs::read_to_string(directory.token(TOKEN_ENGINE_API)).unwrap();
    assert!(std::fs::read_to_string(config).unwrap().contains(&api_key));
    let words: String =
        all.iter().flat_map(|spec| &spec.arguments).map(|word| word.to_string_lossy()).collect();
    assert!(!words.contains(&api_key) && !words.contains(&secrets));
}
