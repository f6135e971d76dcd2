//! Programs of rewards, environments, agents and tools on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rljob_crds::RLJobSpec;

/// Interpreters whose first argument is a script, if it is no option.
const INTERPRETERS: [&str; 5] = ["python", "bash", "sh", "node", "perl"];
/// Folders in which the sandbox searches the programs of tools.
const SANDBOX_FOLDERS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// A command that a run starts on this machine.
struct Command<'a> {
    field: String,
    words: &'a [String],
    /// Whether it is a tool, which runs in the sandbox in its folder, if it has one.
    is_tool: bool,
    folder: Option<&'a str>,
}

/// Programs and scripts of the spec that are not on this machine. Relative paths of programs are
/// absolute already.
pub fn missing(spec: &RLJobSpec) -> Vec<String> {
    let paths = std::env::var_os("PATH");
    let folders = paths.iter().flat_map(std::env::split_paths).collect::<Vec<_>>();
    commands(spec).iter().filter_map(|command| command.missing(&folders)).collect()
}

/// Programs, files of functions and folders of tools whose paths are relative to the job file.
pub fn relative(spec: &RLJobSpec) -> Vec<&str> {
    let functions = spec.rewards.iter().filter_map(|reward| reward.python.as_ref());
    let mut paths: Vec<&str> = functions.map(|own| own.path.as_str()).collect();
    for command in commands(spec) {
        let program = command.words.first().filter(|_| !command.is_tool);
        let program = program.map(String::as_str).filter(|program| program.contains('/'));
        paths.extend(command.folder.into_iter().chain(program));
    }
    paths.retain(|path| Path::new(path).is_relative());
    paths
}

fn commands(spec: &RLJobSpec) -> Vec<Command<'_>> {
    let of = |field: String, words| Command { field, words, is_tool: false, folder: None };
    let rewards = spec.rewards.iter().enumerate().filter_map(|(index, reward)| {
        let words = &reward.command.as_ref()?.command;
        Some(of(format!("spec.rewards[{index}].command.command"), words))
    });
    let mut commands: Vec<_> = rewards.collect();
    let Some(workflow) = &spec.rollout.workflow else { return commands };
    let path = "spec.rollout.workflow";
    let environment = workflow.environment.as_ref().and_then(|own| own.command.as_ref());
    let field = || format!("{path}.environment.command.command");
    commands.extend(environment.map(|own| of(field(), &own.command)));
    let agent = workflow.agent.as_ref();
    commands.extend(agent.map(|own| of(format!("{path}.agent.command"), &own.command)));
    let tools = workflow.tools.iter().flat_map(|own| own.tools.iter().enumerate());
    commands.extend(tools.filter_map(|(index, tool)| {
        let own = tool.command.as_ref()?;
        let field = format!("{path}.tools.tools[{index}].command.command");
        let folder = own.folder.as_deref();
        Some(Command { field, words: &own.command, is_tool: true, folder })
    }));
    commands
}

impl Command<'_> {
    /// The program or its script, if it is not there. `folders` are searched for programs.
    fn missing(&self, folders: &[PathBuf]) -> Option<String> {
        let (program, arguments) = self.words.split_first()?;
        let is_there = if program.contains('/') {
            is_program(&self.in_folder(program))
        } else if self.is_tool {
            SANDBOX_FOLDERS.iter().any(|folder| is_program(&Path::new(folder).join(program)))
        } else {
            folders.iter().any(|folder| is_program(&folder.join(program)))
        };
        let field = &self.field;
        if !is_there {
            if program.contains('/') && self.in_folder(program).is_file() {
                return Some(format!(
                    "{field}: {program} is not executable: chmod +x it, or name its interpreter"
                ));
            }
            return Some(format!("{field}: no program {program} is on this machine"));
        }
        let name = Path::new(program).file_name()?.to_str()?;
        let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        let script = arguments.first().filter(|_| INTERPRETERS.contains(&name))?;
        if script.starts_with('-') || self.in_folder(script).is_file() {
            return None;
        }
        let start = match (Path::new(script).is_relative(), self.is_tool) {
            (false, _) => "",
            (true, true) => "; it is relative to `folder`",
            (true, false) => {
                "; as an argument it is relative to the folder in which `rljob run` is started: \
                 set its absolute path, or make it the program, which is relative to the job file"
            }
        };
        Some(format!("{field}: no file {script} is on this machine{start}"))
    }

    fn in_folder(&self, path: &str) -> PathBuf {
        self.folder.map_or_else(|| PathBuf::from(path), |folder| Path::new(folder).join(path))
    }
}

fn is_program(path: &Path) -> bool {
    let metadata = path.metadata();
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::missing;
    use crate::validate::test_support::with_spec;

    #[test]
    fn a_program_that_is_not_executable_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("add.py"), "").unwrap();
        let add = folder.path().join("add.py").display().to_string();
        let reward = json!({"name": "right", "command": {"command": [add]}});
        let found = missing(&with_spec(&json!({"rewards": [reward]})).spec);
        let expected = format!(
            "spec.rewards[0].command.command: {add} is not executable: chmod +x it, or name its \
             interpreter"
        );
        assert_eq!(found, [expected]);
        let tool = json!({
            "name": "add", "description": "Adds.",
            "command": {"command": ["./add.py"], "folder": folder.path()},
        });
        let workflow = json!({"tools": {"tools": [tool]}});
        let found = missing(&with_spec(&json!({"rollout": {"workflow": workflow}})).spec);
        assert!(found[0].contains("./add.py is not executable: chmod +x it"), "{found:?}");
    }

    #[test]
    fn programs_and_scripts_of_rewards_and_workflows_must_be_on_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("add.py"), "").unwrap();
        let add = folder.path().join("add.py").display().to_string();
        let of_workflow =
            |workflow: Value| missing(&with_spec(&json!({"rollout": {"workflow": workflow}})).spec);
        let of = |words: &[&str], of_tool: &[&str]| {
            let spec = json!({"rewards": [{"name": "right", "command": {"command": words}}]});
            let tool = json!({
                "name": "add", "description": "Adds.",
                "command": {"command": of_tool, "folder": folder.path()},
            });
            let workflows = [
                json!({"environment": {"command": {"command": words}}}),
                json!({"agent": {"command": words}}),
                json!({"tools": {"tools": [tool]}}),
            ];
            let of_workflows = workflows.into_iter().flat_map(of_workflow);
            missing(&with_spec(&spec).spec).into_iter().chain(of_workflows).collect::<Vec<_>>()
        };
        let fields = [
            "spec.rewards[0].command.command",
            "spec.rollout.workflow.environment.command.command",
            "spec.rollout.workflow.agent.command",
            "spec.rollout.workflow.tools.tools[0].command.command",
        ];
        assert_eq!(of(&["sh", &add], &["sh", "add.py"]), Vec::<String>::new());
        assert_eq!(of(&["sh", "-c", "absent"], &["sh", "-c", "absent"]), Vec::<String>::new());
        let program = |name: &str| {
            fields.map(|field| format!("{field}: no program {name} is on this machine"))
        };
        assert_eq!(of(&["/absent/a.py"], &["/absent/a.py"]), program("/absent/a.py"));
        assert_eq!(of(&["absent-1"], &["absent-1"]), program("absent-1"));
        let found = of(&["sh", "absent.py"], &["sh", "absent.py"]);
        let start = fields.map(|field| format!("{field}: no file absent.py is on this machine; "));
        assert_eq!(found.len(), start.len());
        for (found, start) in found.iter().zip(&start) {
            assert!(found.starts_with(start), "{found}");
        }
        assert!(found[3].ends_with("it is relative to `folder`"), "{}", found[3]);
    }
}
