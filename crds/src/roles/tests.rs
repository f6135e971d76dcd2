//! Tests of roles.

use super::*;

fn inference(json: serde_json::Value) -> InferenceSpec {
    serde_json::from_value(json).unwrap()
}

#[test]
fn the_engine_and_its_gpus_follow_from_the_limits() {
    let limits =
        |limits: serde_json::Value| inference(serde_json::json!({"resources": {"limits": limits}}));
    for (spec, engine, gpus) in [
        (limits(serde_json::json!({})), EngineKind::Embedded, 0),
        (limits(serde_json::json!({"cpu": 4, "hugepages-2Mi": "2Mi"})), EngineKind::Embedded, 0),
        (limits(serde_json::json!({"rdma/hca_a": 1})), EngineKind::Embedded, 0),
        (limits(serde_json::json!({"nvidia.com/gpu": 2, "rdma/hca_a": 1})), EngineKind::SGLang, 2),
        (limits(serde_json::json!({"amd.com/gpu": "4"})), EngineKind::SGLang, 4),
        (limits(serde_json::json!({"nvidia.com/mig-1g.10gb": 1})), EngineKind::SGLang, 1),
        (
            limits(serde_json::json!({"nvidia.com/gpu": u32::MAX, "amd.com/gpu": 1})),
            EngineKind::SGLang,
            u32::MAX,
        ),
        (inference(serde_json::json!({"sglang": {}})), EngineKind::SGLang, 0),
        (inference(serde_json::json!({"embedded": {}})), EngineKind::Embedded, 0),
    ] {
        assert_eq!((spec.engine(), spec.gpus()), (engine, gpus), "{spec:?}");
    }
}

#[test]
fn the_ranks_of_an_engine_are_those_of_all_of_its_pods() {
    let of = |gpus: u32, pods: i32| {
        let spec = inference(serde_json::json!({
            "sglang": {}, "podsPerReplica": pods,
            "resources": {"limits": {"amd.com/gpu": gpus}},
        }));
        (spec.ranks(), spec.pods_of(3), spec.engines_of(5))
    };
    assert_eq!([of(0, 1), of(8, 1)], [(1, 3, 5), (8, 3, 5)]);
    assert_eq!([of(0, 2), of(8, 2)], [(2, 6, 2), (16, 6, 2)]);
}

#[test]
fn learners_are_as_many_as_the_gpus_unless_their_number_is_set() {
    for (spec, gpus, processes) in [
        (serde_json::json!({}), 0, 1),
        (serde_json::json!({"processesPerReplica": 3}), 0, 3),
        (serde_json::json!({"resources": {"limits": {"nvidia.com/gpu": 4, "cpu": 16}}}), 4, 4),
        (serde_json::json!({"resources": {"limits": {"nvidia.com/gpu": 0}}}), 0, 1),
    ] {
        let trainer: TrainerSpec = serde_json::from_value(spec).unwrap();
        assert_eq!((trainer.gpus(), trainer.processes()), (gpus, processes), "{trainer:?}");
    }
}
