//! Rules of topology hints.

use serde_json::{Value, json};

use super::super::super::Policy;
use super::super::super::test_support::{merge, minimal};
use super::super::problems;

#[test]
fn a_hint_is_one_kind_of_request_and_the_only_one() {
    let rejected = |topology: Value, more: Value| -> Vec<String> {
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job["spec"], &json!({"scheduling": {"topology": topology}}));
        merge(&mut job["spec"], &more);
        let job = serde_json::from_value(job).unwrap();
        problems(&job, Policy::LOCAL).into_iter().map(|problem| problem.to_string()).collect()
    };
    let hints = || json!({"trainer": {"required": "rack"}, "inference": {"preferred": "rack"}});
    assert_eq!(rejected(hints(), json!({})), Vec::<String>::new());
    assert_eq!(
        rejected(json!({"trainer": {"required": "a", "preferred": "b"}}), json!({})),
        ["spec.scheduling.topology.trainer: set exactly one of required and preferred, found \
            required and preferred"]
    );
    let annotations = json!({"kueue.x-k8s.io/podset-preferred-topology": "rack"});
    let template = json!({"metadata": {"annotations": annotations}});
    assert_eq!(
        rejected(hints(), json!({"trainer": {"template": template}})),
        ["spec.scheduling.topology.trainer: conflicts with the annotation \
            kueue.x-k8s.io/podset-preferred-topology of trainer.template: remove one"]
    );
    assert_eq!(
        rejected(hints(), json!({"inference": {"template": template}})),
        ["spec.scheduling.topology.inference: conflicts with the annotation \
            kueue.x-k8s.io/podset-preferred-topology of inference.template: remove one"]
    );
    let problems = rejected(hints(), json!({"algorithm": {"grpo": null, "evaluation": {}}}));
    let message = "spec.scheduling.topology.trainer: must not be set: the algorithm has no trainer";
    assert!(problems.contains(&message.to_owned()), "{problems:?}");
}
