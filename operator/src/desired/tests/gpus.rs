//! Pods of roles with GPUs.

use rljob_crds::roles::TrainerSpec;

use super::super::pin::Pinned;
use super::super::tokens::TokenKey;
use super::super::*;
use super::{settings, sglang};
use crate::decide::WantedRoles;
use crate::validate::test_support::validated;

fn trainer_on(gpus: u32) -> TrainerSpec {
    let resources = serde_json::json!({"limits": {"nvidia.com/gpu": gpus}});
    serde_json::from_value(serde_json::json!({"resources": resources})).unwrap()
}

#[test]
fn without_gpus_roles_on_gpus_have_no_replicas() {
    let replicas = |engine: u32, trainer: u32| {
        let mut job = validated();
        job.spec.inference = sglang(engine, &[]);
        job.spec.trainer = trainer_on(trainer);
        let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
        let built = build(&job, WantedRoles::WithoutGpus, &settings(), &tokens, &Pinned::default());
        let sets: [_; 3] = built.stateful_sets.try_into().unwrap();
        sets.map(|set| set["spec"]["replicas"].as_i64().unwrap())
    };
    let cases = [(0, 0), (2, 0), (0, 4), (2, 4)];
    let expected = [[2, 1, 1], [0, 1, 1], [2, 1, 0], [0, 1, 0]];
    assert_eq!(cases.map(|(engine, trainer)| replicas(engine, trainer)), expected);
}

#[test]
fn an_engine_that_spans_pods_has_all_of_them_with_ranks_of_one_group() {
    let mut job = validated();
    job.spec.inference = sglang(8, &[]);
    job.spec.inference.pods_per_replica = 2;
    job.spec.scheduling.gang = serde_json::from_value(serde_json::json!({"native": {}})).unwrap();
    assert_eq!(gang::size(&job), 5, "4 pods of engines and a trainer");
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let replicas = |wanted| {
        let built = build(&job, wanted, &settings(), &tokens, &Pinned::default());
        built.stateful_sets[0]["spec"]["replicas"].clone()
    };
    assert_eq!(replicas(WantedRoles::Everything), 4);
    assert_eq!(replicas(WantedRoles::EverythingWith { engines: 3 }), 6);
    let template = pod::build_template(&job, Role::Inference, &settings());
    let container = &template.spec.unwrap().containers[0];
    insta::assert_yaml_snapshot!("spanning_engine", (&container.command, &container.startup_probe));
}

#[test]
fn a_trainer_on_gpus_has_them_in_its_limits_and_memory_to_share() {
    let mut job = validated();
    job.spec.trainer = trainer_on(4);
    let template = pod::build_template(&job, Role::Trainer, &settings());
    let spec = template.spec.unwrap();
    insta::assert_yaml_snapshot!("trainer_on_gpus", (&spec.containers[0], &spec.volumes));
}
