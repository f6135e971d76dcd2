//! Rules of GPUs: which roles have them, how many, and how weights reach engines.

use rljob_crds::algorithm::Precision;
use rljob_crds::job::WeightSyncMethod;
use serde_json::json;

use super::problems_with;
use crate::validate::Policy;
use crate::validate::rules::problems;
use crate::validate::test_support::{merge, minimal};

#[test]
fn engines_on_gpus_are_sglang_servers_and_flags_of_the_run_are_rejected() {
    let limits = json!({"nvidia.com/gpu": "1"});
    let embedded = json!({"inference": {"embedded": {}, "resources": {"limits": limits}}});
    assert_eq!(
        problems_with(&embedded),
        ["spec.inference.resources.limits: the embedded engine runs on CPUs: remove the GPUs or \
            use sglang"]
    );
    let message = "spec.inference.podsPerReplica: the embedded engine is one process: remove it or \
        use sglang";
    assert_eq!(problems_with(&json!({"inference": {"podsPerReplica": 2}})), [message]);
    let spanning = json!({"podsPerReplica": 2, "resources": {"limits": limits}});
    assert_eq!(problems_with(&json!({"inference": spanning})), [""; 0]);
    let arguments = ["--context-length=4096", "--tp_size=2"];
    let sglang = json!({
        "inference": {"sglang": {"extraArgs": arguments}, "resources": {"limits": limits}},
    });
    assert_eq!(
        problems_with(&sglang),
        ["spec.inference.sglang.extraArgs[1]: the run sets --tp-size; remove it"]
    );
    let joined = ["--mem-fraction-static 0.8", "--json-model-override-args={\"a\": 1}", "--x"];
    let sglang = json!({
        "inference": {"sglang": {"extraArgs": joined}, "resources": {"limits": limits}},
    });
    assert_eq!(
        problems_with(&sglang),
        ["spec.inference.sglang.extraArgs[0]: an item is one argument: write \
            --mem-fraction-static=0.8, or two items"]
    );
    assert_eq!(
        problems_with(&json!({
            "inference": {
                "sglang": {}, "embedded": {}, "resources": {"limits": {"amd.com/gpu": 9}},
            },
        })),
        [
            "spec.inference: set at most one of sglang and embedded",
            "spec.inference.resources.limits: a pod of an engine has at most 8 GPUs, found 9",
        ]
    );
}

#[test]
fn learners_run_on_nvidia_gpus_one_each() {
    let only = "learners support NVIDIA GPUs only (nvidia.com/gpu, nvidia.com/mig-*); remove it";
    let limits = "spec.trainer.resources.limits";
    for (processes, own, expected) in [
        (json!(4), json!({"nvidia.com/gpu": 4}), vec![]),
        (json!(null), json!({"nvidia.com/gpu": 8}), vec![]),
        (json!(null), json!({"nvidia.com/mig-1g.10gb": 1}), vec![]),
        (json!(2), json!({"nvidia.com/gpu": 0}), vec![]),
        (
            json!(2),
            json!({"nvidia.com/gpu": 4}),
            vec![
                "spec.trainer.processesPerReplica: must equal the 4 GPUs in resources.limits, \
                    since each learner has one; remove it or set it to 4"
                    .to_owned(),
            ],
        ),
        (
            json!(null),
            json!({"nvidia.com/gpu": 9}),
            vec![format!("{limits}: a trainer pod has at most 8 GPUs, found 9")],
        ),
        (
            json!(null),
            json!({"cpu": "2x", "google.com/tpu": 4}),
            vec![
                format!("{limits}.cpu: must be a quantity such as 500m, 2 or 4Gi, found \"2x\""),
                format!("{limits}.google.com/tpu: {only}"),
            ],
        ),
    ] {
        let trainer = json!({"processesPerReplica": processes, "resources": {"limits": own}});
        assert_eq!(problems_with(&json!({"trainer": trainer})), expected, "{trainer}");
    }
}

#[test]
fn weights_are_broadcast_between_devices_of_one_kind_only() {
    let needs = "needs engines and learners in one process group, both on CPUs or both on NVIDIA \
        GPUs";
    let disk =
        |found: &str| format!("spec.weightSync.method: must be Disk: a broadcast {needs}; {found}");
    let bucket = |found: &str| {
        format!(
            "spec.storage.s3: engines cannot read weights from a bucket, and a broadcast {needs}; \
                {found}; store the run on a volume"
        )
    };
    let (none, gpu, amd) = (json!({}), json!({"nvidia.com/gpu": 1}), json!({"amd.com/gpu": 1}));
    let mig = json!({"nvidia.com/mig-1g.10gb": 1});
    let engines = "engines have NVIDIA GPUs, learners have CPUs";
    let learners = "engines have CPUs, learners have NVIDIA GPUs";
    let others = "engines have other accelerators, learners have NVIDIA GPUs";
    for (inference, trainer, default, found) in [
        (&none, &none, WeightSyncMethod::Distributed, None),
        (&gpu, &gpu, WeightSyncMethod::Distributed, None),
        (&gpu, &mig, WeightSyncMethod::Distributed, None),
        (&gpu, &none, WeightSyncMethod::Disk, Some(engines)),
        (&none, &gpu, WeightSyncMethod::Disk, Some(learners)),
        (&amd, &gpu, WeightSyncMethod::Disk, Some(others)),
    ] {
        let job = |method: Option<&str>, is_in_bucket: bool| {
            let mut job = serde_json::to_value(minimal()).unwrap();
            job["spec"]["weightSync"] = json!({"method": method, "everySteps": 1});
            if is_in_bucket {
                job["spec"]["storage"] = json!({"s3": {"bucket": "runs"}});
            }
            job["spec"]["inference"] = json!({
                "replicas": 2, "sglang": {}, "resources": {"limits": inference},
            });
            job["spec"]["trainer"] = json!({"resources": {"limits": trainer}});
            let job: rljob_crds::RLJob = serde_json::from_value(job).unwrap();
            let problems = problems(&job, Policy::LOCAL);
            (job, problems.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (own, problems) = job(None, false);
        assert_eq!((own.spec.weight_sync_method(), problems), (default, vec![]));
        let (_, problems) = job(Some("Distributed"), false);
        assert_eq!(problems, found.map(disk).into_iter().collect::<Vec<_>>());
        let expected: Vec<String> = found.map(bucket).into_iter().collect();
        for method in [None, Some("Distributed")] {
            assert_eq!(job(method, true).1, expected, "{method:?}");
        }
    }
}

#[test]
fn training_is_in_bf16_on_gpus() {
    let gpu = json!({"resources": {"limits": {"nvidia.com/gpu": 1}}});
    for (spec, expected) in [
        (json!({}), Precision::FP32),
        (json!({"inference": gpu}), Precision::BF16),
        (json!({"trainer": gpu}), Precision::BF16),
        (json!({"trainer": gpu, "training": {"precision": "FP32"}}), Precision::FP32),
    ] {
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job["spec"], &spec);
        let job: rljob_crds::RLJob = serde_json::from_value(job).unwrap();
        assert_eq!(job.spec.precision(), expected, "{spec}");
    }
}

#[test]
fn resources_without_a_domain_are_those_of_kubernetes() {
    let limits = json!({
        "cpu": 2, "memory": "4Gi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi",
        "example.com/device": 1, "gpu": 1,
    });
    assert_eq!(
        problems_with(&json!({"coordinator": {"resources": {"limits": limits}}})),
        ["spec.coordinator.resources.limits.gpu: is no resource of Kubernetes: names of others \
            have a domain, for example nvidia.com/gpu"]
    );
}
