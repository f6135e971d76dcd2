//! Paths that no volume or image has, and templates of data that do not mean what they say.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::names::STORAGE_MOUNT;

use crate::validate::{Problem, rules};

/// Paths that no volume of the job provides.
pub fn check_mounts(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    // Templates of roles mount volumes without a path.
    if spec.volumes.iter().any(|volume| volume.mount_path.is_none()) {
        return;
    }
    let mounts = spec.volumes.iter().filter_map(|volume| volume.mount_path.as_deref());
    let mounts: Vec<&str> = mounts.chain([STORAGE_MOUNT]).collect();
    for (field, path) in rules::paths(spec) {
        let is_mounted = mounts.iter().any(|at| Path::new(path).starts_with(at));
        if path.starts_with('/') && !is_mounted {
            let message =
                format!("`{path}` is below no mountPath of spec.volumes: the image must have it");
            warnings.push(Problem::new(field, message));
        }
    }
}

/// Relative programs of rewards, environments and agents. A program without a slash is searched in
/// PATH. Absolute paths may be of the image.
pub fn check_programs(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let rewards = spec.rewards.iter().enumerate().filter_map(|(index, reward)| {
        let program = reward.command.as_ref()?.command.first()?;
        Some((format!("spec.rewards[{index}].command.command[0]"), program))
    });
    let agent = spec.agent().and_then(|agent| agent.command.first());
    let agent = agent.map(|program| ("spec.rollout.workflow.agent.command[0]".to_owned(), program));
    let workflow = spec.rollout.workflow.as_ref();
    let environment = workflow.and_then(|workflow| workflow.environment.as_ref());
    let environment = environment.and_then(|of| of.command.as_ref()?.command.first());
    let environment = environment.map(|program| {
        ("spec.rollout.workflow.environment.command.command[0]".to_owned(), program)
    });
    for (field, program) in rewards.chain(environment).chain(agent) {
        if program.contains('/') && !program.starts_with('/') {
            let message = format!(
                "`{program}` is relative: only `rljob run` finds it in the folder of the job file; \
                 set its absolute path in the image or in a volume of spec.volumes"
            );
            warnings.push(Problem::new(field, message));
        }
    }
}

/// A template where a field is expected.
pub fn check_fields(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let (parts, suites) = (spec.dataset.train.parts(), spec.dataset.suites());
    let train = parts.iter().map(|own| (&own.field, own.data.answer.as_ref()));
    let suites = suites.iter().map(|own| (&own.field, own.data.answer.as_ref()));
    let is_template = |name: Option<&String>| name.is_some_and(|name| name.contains("{{"));
    for (field, _) in train.chain(suites).filter(|(_, answer)| is_template(*answer)) {
        let message = "is the name of a field of the row, not a template";
        warnings.push(Problem::new(format!("{field}.answer"), message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check_programs;
    use crate::validate::test_support::with_spec;

    #[test]
    fn relative_programs_are_named() {
        let of = |program: &str| {
            let command = json!({"command": [program, "./data", "/data"]});
            let spec = json!({
                "rewards": [{"name": "right", "math": {}}, {"name": "judge", "command": command}],
                "rollout": {"workflow": {"agent": command}},
            });
            let mut warnings = Vec::new();
            check_programs(&with_spec(&spec).spec, &mut warnings);
            warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for program in ["python3", "/usr/bin/python3"] {
            assert_eq!(of(program), Vec::<String>::new());
        }
        for program in ["./check.py", "agents/check.py"] {
            let fields =
                ["spec.rewards[1].command.command[0]", "spec.rollout.workflow.agent.command[0]"];
            let expected = fields.map(|field| {
                format!(
                    "{field}: `{program}` is relative: only `rljob run` finds it in the folder of \
                     the job file; set its absolute path in the image or in a volume of \
                     spec.volumes"
                )
            });
            assert_eq!(of(program), expected);
        }
    }
}
