//! Files and folders of this machine that a spec names. Pure.

use rljob_crds::RLJobSpec;

/// The paths with their fields. A program without a slash is searched in PATH and is not among
/// them.
pub fn paths_mut(spec: &mut RLJobSpec) -> Vec<(String, &mut String)> {
    let named = |field: &str| field.to_owned();
    let mut paths = Vec::new();
    paths.extend(spec.model.path.iter_mut().map(|path| (named("spec.model.path"), path)));
    let teacher = spec.algorithm.teacher_path_mut();
    paths.extend(teacher.map(|(field, path)| (format!("{field}.path"), path)));
    paths.extend(spec.dataset.paths_mut());
    let checkpoint = spec.restore_from.iter_mut().flat_map(|source| &mut source.path);
    paths.extend(checkpoint.map(|path| (named("spec.restoreFrom.path"), path)));
    for (index, reward) in spec.rewards.iter_mut().enumerate() {
        let program = reward.command.iter_mut().filter_map(|of| of.command.first_mut());
        let field = format!("spec.rewards[{index}].command.command[0]");
        let program = program.filter(|program| program.contains('/'));
        paths.extend(program.map(|program| (field.clone(), program)));
        let field = format!("spec.rewards[{index}].model.path");
        let model = reward.model.iter_mut().flat_map(|of| &mut of.path);
        paths.extend(model.map(|path| (field.clone(), path)));
        let field = format!("spec.rewards[{index}].python.path");
        paths.extend(reward.python.iter_mut().map(|of| (field.clone(), &mut of.path)));
    }
    if let Some(workflow) = &mut spec.rollout.workflow {
        let agent = workflow.agent.iter_mut().filter_map(|agent| agent.command.first_mut());
        let agent = agent.filter(|program| program.contains('/'));
        let field = "spec.rollout.workflow.agent.command[0]";
        paths.extend(agent.map(|program| (named(field), program)));
        let environment = workflow.environment.iter_mut().filter_map(|of| of.command.as_mut());
        let environment = environment.filter_map(|of| of.command.first_mut());
        let environment = environment.filter(|program| program.contains('/'));
        let field = "spec.rollout.workflow.environment.command.command[0]";
        paths.extend(environment.map(|program| (named(field), program)));
        let tools = workflow.tools.iter_mut().flat_map(|of| of.tools.iter_mut().enumerate());
        paths.extend(tools.filter_map(|(index, tool)| {
            let field = format!("spec.rollout.workflow.tools.tools[{index}].command.folder");
            Some((field, tool.command.as_mut()?.folder.as_mut()?))
        }));
    }
    paths
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::test_support::with_spec;

    fn fields(spec: &Value) -> Vec<String> {
        let mut job = with_spec(spec);
        paths_mut(&mut job.spec).into_iter().map(|(field, _)| field).collect()
    }

    #[test]
    fn paths_have_their_fields() {
        let command = |program: &str| json!({"command": [program]});
        let rewards = json!([
            {"name": "a", "command": command("/bin/score")},
            {"name": "b", "command": command("score")},
            {"name": "c", "python": {"path": "/reward.py", "function": "score"}},
            {"name": "d", "model": {"path": "/judge", "engines": {}, "text": "{{completion}}"}},
        ]);
        let fields = fields(&json!({"rewards": rewards}));
        let of_rewards = [
            "spec.rewards[0].command.command[0]",
            "spec.rewards[2].python.path",
            "spec.rewards[3].model.path",
        ];
        let first = ["spec.model.path", "spec.dataset.train.path"];
        assert_eq!(fields, [&first[..], &of_rewards[..]].concat());
    }
}
