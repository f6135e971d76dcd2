//! Roles of which a job has no pods: their StatefulSet, and nothing else that selects pods.

use super::*;
use crate::children::readable;
use crate::validate::test_support::with_spec;

fn children_of(job: &ValidatedJob) -> Resources {
    build(job, WantedRoles::Everything, &settings(), &Tokens::placeholders(), &Pinned::default())
}

/// A job that trains on given completions, with this many engines.
fn imitating(engines: i32) -> ValidatedJob {
    with_spec(&serde_json::json!({
        "dataset": {"train": {"completion": "{{answer}}"}},
        "algorithm": {"grpo": null, "sft": {}},
        "rewards": [],
        "inference": {"replicas": engines},
    }))
}

/// Kinds and names of the children that are read.
fn names(job: &ValidatedJob) -> Vec<String> {
    readable(job).iter().map(|(kind, name)| format!("{kind} {name}")).collect()
}

#[test]
fn a_job_without_engines_has_no_service_and_no_budget_of_engines() {
    let (without, mut with) = (children_of(&imitating(0)), children_of(&imitating(2)));
    with.config_map = without.config_map.clone();
    with.disruption_budgets.clear();
    with.services.retain(|service| service.metadata.name.as_deref() != Some("sums-inference"));
    let engines = |set: &&mut Value| set["metadata"]["name"] == "sums-inference";
    let set = with.stateful_sets.iter_mut().find(engines).unwrap();
    assert_eq!(set["spec"]["replicas"].take(), 2);
    set["spec"]["replicas"] = 0.into();
    assert_eq!(without, with);
    let expected = [
        "ConfigMap sums-run",
        "NetworkPolicy sums",
        "Service sums-coordinator",
        "Service sums-trainer",
        "StatefulSet sums-inference",
        "StatefulSet sums-coordinator",
        "StatefulSet sums-trainer",
    ];
    assert_eq!(names(&imitating(0)), expected);
    let made = children(&without).into_iter().map(|child| child.name).skip(1);
    assert_eq!(made.collect::<Vec<_>>(), readable(&imitating(0)));
}

#[test]
fn a_job_that_gains_engines_gains_their_service_and_budget() {
    let gained: Vec<String> = {
        let before = names(&imitating(0));
        names(&imitating(1)).into_iter().filter(|name| !before.contains(name)).collect()
    };
    assert_eq!(gained, ["PodDisruptionBudget sums-inference", "Service sums-inference"]);
}

#[test]
fn a_job_without_learners_has_no_service_of_trainers() {
    let mut job = validated();
    job.spec.algorithm = serde_json::from_value(serde_json::json!({"evaluation": {}})).unwrap();
    let expected = [
        "ConfigMap sums-run",
        "NetworkPolicy sums",
        "PodDisruptionBudget sums-inference",
        "Service sums-inference",
        "Service sums-coordinator",
        "StatefulSet sums-inference",
        "StatefulSet sums-coordinator",
        "StatefulSet sums-trainer",
    ];
    assert_eq!(names(&job), expected);
    let made = children(&children_of(&job)).into_iter().map(|child| child.name).skip(1);
    assert_eq!(made.collect::<Vec<_>>(), readable(&job));
}
