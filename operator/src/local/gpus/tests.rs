//! Shares of GPUs and memory, and the messages about them.

use serde_json::json;

use super::*;
use crate::validate::test_support::with_spec;

const ENGINE: Role = Role::Engine(EnginePurpose::Rollouts);

/// Two engines and `trainers` trainers with these GPUs each.
fn spec(engine: u32, trainers: i32, trainer: u32) -> Box<RLJobSpec> {
    let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
    let patch = json!({
        "inference": {"sglang": {}, "resources": limits(engine)},
        "trainer": {
            "replicas": trainers, "processesPerReplica": null, "resources": limits(trainer),
        },
    });
    Box::new(with_spec(&patch).spec.clone())
}

/// GPUs 4 and later.
fn gpus(count: usize, engine_percent: Option<u8>) -> Gpus {
    let names = (4..).take(count).map(|number: usize| number.to_string()).collect();
    Gpus { names, engine_percent, allocator: None }
}

#[test]
fn too_few_gpus_are_a_problem_that_counts_both_roles() {
    let hint = "reduce replicas or GPUs, or remove the GPUs from the limits to run on CPUs";
    let (engines, trainers) = ("spec.inference.resources.limits", "spec.trainer.resources.limits");
    for (spec, available, expected) in [
        (spec(0, 1, 0), 0, None),
        (spec(2, 1, 0), 4, None),
        (
            spec(2, 1, 0),
            3,
            Some(format!(
                "{engines}: the job needs 4 GPUs (2 engines with 2 GPUs each), and this \
                 machine has 3; {hint}"
            )),
        ),
        (
            spec(0, 1, 1),
            0,
            Some(format!(
                "{trainers}: the job needs 1 GPU (1 trainer with 1 GPU), and this machine \
                 has 0; {hint}"
            )),
        ),
        (spec(1, 2, 4), 10, None),
        (
            spec(1, 2, 4),
            8,
            Some(format!(
                "{engines}, {trainers}: the job needs 10 GPUs (2 engines with 1 GPU each, 2 \
                 trainers with 4 GPUs each), and this machine has 8; let engines and learners \
                 use the same GPUs with --share-gpus, {hint}"
            )),
        ),
    ] {
        assert_eq!(gpus(available, None).shortage(&spec), expected);
    }
}

#[test]
fn engines_and_learners_can_share_gpus() {
    let shared = |spec: &mut RLJobSpec| {
        spec.weight_sync.method = Some(WeightSyncMethod::Disk);
    };
    let mut job = spec(1, 1, 1);
    shared(&mut job);
    let expected = [
        "engines run on GPUs [4] [5]",
        "trainers run on GPUs [4]",
        "engines use 40 % of the memory of a GPU, and learners 60 %",
    ];
    let two = gpus(2, Some(40));
    assert_eq!(two.lines(&job), expected);
    assert_eq!(two.problems(&job), [""; 0]);
    let advice = "let engines and learners use the same GPUs with --share-gpus, reduce";
    assert!(gpus(2, None).shortage(&job).unwrap().contains(advice));
    let problem = gpus(1, Some(40)).shortage(&job).unwrap();
    assert!(problem.contains("the job needs 2 GPUs") && !problem.contains("--share-gpus"));
    assert_eq!([Some(40), None].map(|percent| learner_percent(&job, percent)), [60, 100]);
    // Learners on CPUs share nothing.
    assert_eq!(gpus(2, Some(40)).learner_memory(&spec(1, 1, 0)), None);
}

#[test]
fn sharing_needs_weights_on_disk_and_sets_the_memory_of_engines() {
    let gpu = json!({"limits": {"nvidia.com/gpu": 1}});
    let job = with_spec(&json!({
        "weightSync": {"method": "Distributed"},
        "inference": {
            "sglang": {"extraArgs": ["--mem-fraction-static=0.5"]}, "replicas": 1,
            "resources": gpu,
        },
        "trainer": {"processesPerReplica": null, "resources": gpu},
    }));
    let expected = [
        "spec.weightSync.method: NCCL connects no two processes of one GPU; set it to Disk, \
         or remove --share-gpus",
        "spec.inference.sglang.extraArgs: --share-gpus sets --mem-fraction-static; remove it, \
         and use --share-gpus=PERCENT",
    ];
    assert_eq!(gpus(1, Some(40)).problems(&job.spec), expected);
    assert_eq!(gpus(2, None).problems(&job.spec), [""; 0]);
}

#[test]
fn engines_and_then_trainers_have_separate_gpus() {
    for (spec, engines, trainers) in [
        (spec(0, 2, 0), ["", ""], ["", ""]),
        (spec(2, 2, 0), ["4,5", "6,7"], ["", ""]),
        (spec(0, 2, 2), ["", ""], ["4,5", "6,7"]),
        (spec(1, 2, 2), ["4", "5"], ["6,7", "8,9"]),
    ] {
        let gpus = gpus(6, None);
        let shares = (
            [0, 1].map(|index| gpus.visible(&spec, ENGINE, index)),
            [0, 1].map(|index| gpus.visible(&spec, Role::Trainer, index)),
        );
        assert_eq!(shares, (engines.map(Into::into), trainers.map(Into::into)));
    }
}

#[test]
fn other_engines_have_the_gpus_between_those_of_engines_and_trainers() {
    let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
    let spec = &with_spec(&json!({
        "dataset": {"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
        }},
        "inference": {"sglang": {}, "replicas": 1, "resources": limits(2)},
        "evaluation": {"engines": {"replicas": 2, "resources": limits(1)}},
        "rewards": [{"name": "scored", "model": {
            "path": "/judge", "engines": {"resources": limits(1)}, "text": "{{completion}}",
        }}],
        "trainer": {"replicas": 1, "processesPerReplica": null, "resources": limits(2)},
    }))
    .spec;
    let expected = [
        "engines run on GPUs [4,5]",
        "evaluation engines run on GPUs [6] [7]",
        "reward engines run on GPUs [8]",
        "trainers run on GPUs [9,10]",
    ];
    assert_eq!(gpus(7, None).lines(spec), expected);
    assert_eq!(gpus(7, None).visible(spec, Role::Engine(EnginePurpose::Reward), 0), "8");
    let teacher = json!({"path": "/teacher", "engines": {"resources": limits(1)}});
    let mut taught = spec.clone();
    let distillation = json!({"distillation": {"teacher": teacher}});
    taught.algorithm = serde_json::from_value(distillation).unwrap();
    let lines = gpus(8, None).lines(&taught);
    assert_eq!(lines[2..4], ["reward engines run on GPUs [8]", "teacher engines run on GPUs [9]"]);
    let problem = gpus(5, None).shortage(spec).unwrap();
    assert!(problem.contains("2 evaluation engines with 1 GPU each"), "{problem}");
    assert!(problem.contains("spec.rewards[0].model.engines.resources.limits"), "{problem}");
}

#[test]
fn a_group_has_the_gpus_after_those_of_trainers() {
    let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
    let spec = with_spec(&json!({
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "inference": {"sglang": {}, "replicas": 1, "resources": limits(1)},
        "trainer": {
            "processesPerReplica": null, "resources": limits(2),
            "groups": [{
                "name": "frozen", "roles": ["Reference"], "replicas": 2, "resources": limits(1),
            }],
        },
    }));
    let all = gpus(5, None);
    assert_eq!(all.visible(&spec.spec, Role::Trainer, 0), "5,6");
    let of_group = |index| all.visible(&spec.spec, Role::Group, index);
    assert_eq!([0, 1].map(of_group), ["7", "8"]);
    let expected = [
        "engines run on GPUs [4]",
        "trainers run on GPUs [5,6]",
        "trainer.groups replicas run on GPUs [7] [8]",
    ];
    assert_eq!(all.lines(&spec.spec), expected);
    let shortage = gpus(4, None).shortage(&spec.spec).unwrap();
    assert!(
        shortage.contains("5 GPUs")
            && shortage.contains("2 trainer.groups replicas with 1 GPU each")
    );
}

#[test]
fn a_line_of_each_role_names_its_gpus() {
    for (spec, expected) in [
        (spec(0, 1, 0), vec![]),
        (spec(2, 1, 0), vec!["engines run on GPUs [4,5] [6,7]", "trainers run on CPUs"]),
        (spec(0, 1, 1), vec!["engines run on CPUs", "trainers run on GPUs [4]"]),
        (spec(1, 2, 2), vec!["engines run on GPUs [4] [5]", "trainers run on GPUs [6,7] [8,9]"]),
    ] {
        assert_eq!(gpus(6, None).lines(&spec), expected);
    }
}
