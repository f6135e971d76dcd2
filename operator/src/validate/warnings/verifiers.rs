//! Settings of verifier pods that have no effect, or too few CPUs for their programs.

use rljob_crds::RLJobSpec;
use rljob_crds::names::CONTAINER_REWARDS;
use rljob_crds::reward::RewardSpec;
use rljob_crds::verifiers::VerifiersSpec;
use serde_json::Value;

use crate::quantity::thousandths;
use crate::validate::Problem;

/// Verifier pods of a local run.
pub(super) fn check_local(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    if spec.verifiers.is_some() {
        let message = "has no effect in a local run: programs run on this machine";
        warnings.push(Problem::new("spec.verifiers", message));
    }
}

/// Verifier pods of a cluster.
pub(super) fn check_pods(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let Some(verifiers) = &spec.verifiers else { return };
    check_container(spec, warnings);
    check_requests(spec, verifiers, warnings);
}

/// A container of the coordinator's pod that was meant for the programs.
fn check_container(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let template = spec.coordinator.template.as_ref().filter(|_| !spec.runs_programs());
    let containers = template.and_then(|template| template.spec.get("containers"));
    let containers = containers.and_then(Value::as_array).into_iter().flatten();
    for (index, _) in
        containers.enumerate().filter(|(_, container)| container["name"] == CONTAINER_REWARDS)
    {
        let message = "is a sidecar without programs: they run in verifier pods, whose container \
            is in spec.verifiers.template";
        let path = format!("spec.coordinator.template.spec.containers[{index}]");
        warnings.push(Problem::new(path, message));
    }
}

/// Fewer CPUs than programs that a pod runs at a time.
fn check_requests(spec: &RLJobSpec, verifiers: &VerifiersSpec, warnings: &mut Vec<Problem>) {
    // A limit without a request is a request.
    let amounts = [&verifiers.resources.requests, &verifiers.resources.limits];
    let found = amounts.into_iter().flatten().find_map(|amounts| amounts.get("cpu"));
    let programs = programs_at_a_time(spec);
    let needed = i128::from(programs).saturating_mul(1000);
    if needed == 0 || found.and_then(thousandths).is_some_and(|found| found >= needed) {
        return;
    }
    let message = format!(
        "is {}, but a pod runs up to {programs} programs at a time (concurrency and processes of \
         rewards and tools): those that share a CPU can exceed their time",
        found.map_or("0.1 by default", |found| found.0.as_str())
    );
    warnings.push(Problem::new("spec.verifiers.resources.requests.cpu", message));
}

/// Programs of rewards and tools that a verifier pod runs at a time. Agents and environments do not
/// count: they wait for completions most of the time.
fn programs_at_a_time(spec: &RLJobSpec) -> u32 {
    let of_reward = |reward: &RewardSpec| {
        let code = reward.code.as_ref().map(|code| code.concurrency);
        let python = reward.python.as_ref().map(|python| python.processes);
        let command = reward.command.as_ref().map(|command| command.processes);
        code.or(python).or(command).unwrap_or(0)
    };
    let tools = spec.rollout.workflow.as_ref().and_then(|workflow| workflow.tools.as_ref());
    let of_tools = tools.iter().flat_map(|tools| &tools.tools);
    let of_tools = of_tools.filter_map(|tool| Some(tool.command.as_ref()?.concurrency));
    spec.rewards.iter().map(of_reward).chain(of_tools).fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use rljob_crds::RLJobSpec;
    use serde_json::{Value, json};

    use super::{check_local, check_pods};
    use crate::validate::Problem;
    use crate::validate::test_support::{merge, with_spec};

    /// Warnings of a job whose programs run 6 at a time in verifier pods, with a change.
    fn found(
        check: impl Fn(&RLJobSpec, &mut Vec<Problem>),
        resources: &Value,
        change: &Value,
    ) -> Vec<String> {
        let mut spec = json!({
            "rewards": [
                {"name": "tests", "code": {"concurrency": 4}},
                {"name": "judge", "command": {"command": ["judge"], "processes": 2}},
                {"name": "right", "math": {}},
            ],
            "verifiers": {"maxReplicas": 2, "resources": resources},
        });
        merge(&mut spec, change);
        let mut warnings = Vec::new();
        check(&with_spec(&spec).spec, &mut warnings);
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_container_for_programs_in_the_pod_of_the_coordinator_is_named() {
        let of = |change: &Value| found(check_pods, &json!({"requests": {"cpu": 6}}), change);
        let image = "registry.example/programs:1";
        let containers = json!([
            {"name": "proxy", "image": image}, {"name": "rewards", "image": image},
        ]);
        let template = json!({"spec": {"containers": containers}});
        let change = json!({"coordinator": {"template": template}});
        let expected = "spec.coordinator.template.spec.containers[1]: is a sidecar without \
            programs: they run in verifier pods, whose container is in spec.verifiers.template";
        assert_eq!(of(&change), [expected]);
    }

    #[test]
    fn fewer_cpus_than_programs_are_named() {
        let of = |resources: Value| found(check_pods, &resources, &json!({}));
        let expected = |found: &str| {
            format!(
                "spec.verifiers.resources.requests.cpu: is {found}, but a pod runs up to 6 \
                 programs at a time (concurrency and processes of rewards and tools): those that \
                 share a CPU can exceed their time"
            )
        };
        assert_eq!(of(json!({"requests": {"cpu": 6}})), Vec::<String>::new());
        assert_eq!(of(json!({"limits": {"cpu": 6}})), Vec::<String>::new());
        assert_eq!(of(json!({"requests": {"cpu": "5900m"}})), [expected("5900m")]);
        assert_eq!(of(json!({})), [expected("0.1 by default")]);
        let tool = json!({
            "name": "run", "description": "Runs.",
            "command": {"command": ["/run"], "concurrency": 1},
        });
        let change = json!({"rollout": {"workflow": {"tools": {"tools": [tool]}}}});
        let with_tool = found(check_pods, &json!({"requests": {"cpu": 6}}), &change);
        assert!(with_tool[0].contains("up to 7 programs"), "{with_tool:?}");
    }

    #[test]
    fn a_local_run_has_no_verifier_pods() {
        let of = |change: &Value| found(check_local, &json!({}), change);
        let expected = "spec.verifiers: has no effect in a local run: programs run on this machine";
        assert_eq!(of(&json!({})), [expected]);
        assert_eq!(of(&json!({"verifiers": null})), Vec::<String>::new());
    }
}
