//! Files of this machine that a run starts as programs, or calls as functions, and modules of the
//! functions.

use std::collections::BTreeMap;
use std::path::Path;

use rljob_crds::RLJobSpec;

use super::python_modules::imported;

/// Modules in the folder of a function of a reward that it imports, by the field of the function
/// and their name in the folder.
pub fn modules(spec: &RLJobSpec) -> BTreeMap<String, String> {
    let functions = spec.rewards.iter().enumerate();
    let functions =
        functions.filter_map(|(at, own)| Some((at, Path::new(&own.python.as_ref()?.path))));
    let modules = functions.flat_map(|(at, function)| {
        imported(function).into_iter().filter_map(move |module| {
            let name = module.strip_prefix(function.parent()?).ok()?.display().to_string();
            Some((format!("spec.rewards[{at}].python.path ({name})"), module.display().to_string()))
        })
    });
    modules.collect()
}

/// Functions of rewards, and the first word of each command that is a file in `folder`, by the
/// fields that name them. Interpreters elsewhere change with the system.
pub fn program_files(spec: &RLJobSpec, folder: &Path) -> BTreeMap<String, String> {
    let commands = spec.rewards.iter().enumerate().filter_map(|(index, reward)| {
        Some((format!("spec.rewards[{index}].command.command"), &reward.command.as_ref()?.command))
    });
    let workflow = spec.rollout.workflow.iter();
    let agents = workflow.clone().filter_map(|own| own.agent.as_ref());
    let agents = agents.map(|own| ("spec.rollout.workflow.agent.command".to_owned(), &own.command));
    let environments = workflow.filter_map(|own| own.environment.as_ref()?.command.as_ref());
    let field = "spec.rollout.workflow.environment.command.command";
    let environments = environments.map(|own| (field.to_owned(), &own.command));
    let canonical = |path: &Path| path.canonicalize().unwrap_or_default();
    let folder = canonical(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let mut programs = BTreeMap::new();
    for (field, command) in commands.chain(agents).chain(environments) {
        // A program without a slash is searched in PATH.
        let words = command.iter().enumerate().filter(|(at, word)| *at > 0 || word.contains('/'));
        let mut files = words.filter(|(_, word)| {
            let file = canonical(Path::new(word));
            file.is_file() && file.starts_with(&folder)
        });
        let program = files.next().map(|(at, word)| (format!("{field}[{at}]"), word.clone()));
        programs.extend(program);
    }
    for (index, reward) in spec.rewards.iter().enumerate() {
        let function = reward.python.as_ref().map(|function| function.path.clone());
        let field = format!("spec.rewards[{index}].python.path");
        programs.extend(function.map(|path| (field, path)));
    }
    programs
}
