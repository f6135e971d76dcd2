//! Devices of engines and learners on the API server: a broadcast of weights between any two, whose
//! rule must not reject what the operator accepts.

use rljob_tests::Namespace;
use serde_json::{Value, json};

use super::{cluster, job_with};

#[test]
fn a_broadcast_needs_engines_and_learners_on_one_kind_of_device() {
    let namespace = Namespace::create(cluster(), "devices").unwrap();
    let accepts = |engine: &Value, learner: &Value| {
        let job = job_with(&json!({"spec": {
            "inference": {"sglang": {}, "resources": {"limits": engine}},
            "trainer": {"resources": {"limits": learner}},
            "weightSync": {"method": "Distributed"},
        }}));
        let arguments = ["create", "--dry-run=server", "--filename=-"];
        let answer = namespace.kubectl.run_with_input(&arguments, &job);
        answer.map_err(|error| {
            let error = format!("{error:#}");
            assert!(error.contains("weightSync.method Distributed needs engines and"), "{error}");
        })
    };
    let cpu = json!({"cpu": 4, "memory": "8Gi"});
    let gpu = json!({"cpu": 4, "nvidia.com/gpu": 1, "rdma/hca": 1});
    let (no_gpu, text) = (json!({"nvidia.com/gpu": 0}), json!({"nvidia.com/gpu": "0"}));
    let mig = json!({"nvidia.com/mig-1g.10gb": 1});
    let (amd, none) = (json!({"amd.com/gpu": 1}), json!({}));
    for (engine, learner, expected) in [
        (&none, &cpu, true),
        (&cpu, &none, true),
        (&gpu, &gpu, true),
        (&gpu, &mig, true),
        (&mig, &gpu, true),
        (&no_gpu, &none, true),
        (&cpu, &text, true),
        (&gpu, &none, false),
        (&gpu, &cpu, false),
        (&none, &gpu, false),
        (&cpu, &gpu, false),
        (&amd, &gpu, false),
        (&amd, &none, false),
    ] {
        assert_eq!(accepts(engine, learner).is_ok(), expected, "{engine} and {learner}");
    }
}
