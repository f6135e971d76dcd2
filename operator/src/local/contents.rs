//! Contents of the inputs of a run, recorded in `inputs.json`. A run whose project folder has moved
//! continues if they are the same: paths of inputs do not identify them. Programs, functions and
//! their modules are compared at every start; the coordinator compares the rows of data.
//!
//! ```text
//!  inputs.json (path, SHA-256) ──┐
//!  paths of the job ─────────────┴▶ Located: inputs now, changed and edited fields
//!  run.json of the last start ──────▶ at_current_paths ─▶ compared with the job
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use serde::{Deserialize, Serialize};

use super::digest::digest;
use super::paths::paths_mut;
use super::program_files::{modules, program_files};

/// Field of the model folder, which may also be the export of another job.
const MODEL: &str = "spec.model";

/// Inputs of a run.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inputs {
    /// `spec.model.path` when the run began, which the identity of its run store contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// Inputs by the field that names them.
    #[serde(default)]
    pub contents: BTreeMap<String, Input>,
}

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Where it was at the last start.
    pub path: String,
    /// SHA-256 of the contents, as hexadecimal.
    pub sha256: String,
}

/// Inputs at the paths of the current job.
#[derive(Debug, Default)]
pub struct Located {
    pub inputs: Inputs,
    /// Fields whose path and contents differ from those of the run.
    pub changed: Vec<String>,
    /// Fields of programs, functions and modules at the path of the run whose contents differ.
    pub edited: Vec<String>,
}

impl Located {
    /// Finds the inputs of `current`, a job in `folder`. Reads programs and functions, and inputs
    /// that are new or at another path. `previous` is the configuration of the last start, which
    /// may be older than the record.
    pub fn new(
        recorded: &Inputs,
        previous: Option<&RunConfig>,
        current: &RunConfig,
        folder: &Path,
    ) -> Self {
        let began = previous.map_or(&current.spec, |previous| &previous.spec);
        let model_path = recorded.model_path.clone().or_else(|| began.model.path.clone());
        let inputs = Inputs { model_path, contents: BTreeMap::new() };
        let mut located = Self { inputs, ..Self::default() };
        let mut programs = program_files(&current.spec, folder);
        let paths = paths(current).into_iter().map(|(field, path)| {
            let is_program = programs.remove(&field).is_some();
            (field, path, is_program)
        });
        let paths: Vec<_> = paths.collect();
        let arguments = programs.into_iter().map(|(field, path)| (field, path, true));
        let modules = modules(&current.spec);
        let of_functions = modules.clone().into_iter().map(|(field, path)| (field, path, true));
        for (field, path, is_program) in paths.into_iter().chain(arguments).chain(of_functions) {
            let before = recorded.contents.get(&field);
            // A module is identified by its name in the folder of its function.
            let is_there =
                before.is_some_and(|input| input.path == path || modules.contains_key(&field));
            if let Some(input) = before.filter(|_| is_there && !is_program) {
                located.inputs.contents.insert(field, input.clone());
                continue;
            }
            // The processes report inputs that cannot be read.
            let sha256 = digest(Path::new(&path)).ok();
            if before.is_some_and(|input| Some(&input.sha256) != sha256.as_ref()) {
                let fields = if is_there { &mut located.edited } else { &mut located.changed };
                fields.push(field.clone());
            }
            if let Some(sha256) = sha256 {
                located.inputs.contents.insert(field, Input { path, sha256 });
            }
        }
        located
    }

    /// The configuration of the last start with the current paths of inputs whose contents are the
    /// same.
    pub fn at_current_paths(&self, recorded: &Inputs, mut previous: RunConfig) -> RunConfig {
        let moved = |field: &str, path: &str| {
            let before = recorded.contents.get(field).filter(|input| input.path == path)?;
            let now = self.inputs.contents.get(field)?;
            (now.sha256 == before.sha256).then(|| now.path.clone())
        };
        for (field, path) in paths_mut(&mut previous.spec) {
            if let Some(now) = moved(&field, path) {
                *path = now;
            }
        }
        if let Some(now) = moved(MODEL, &previous.model_directory.to_string_lossy()) {
            previous.model_directory = PathBuf::from(now);
        }
        previous
    }

    /// `model_identity` of the run configuration.
    pub fn model_identity(&self, current: &RunConfig) -> Option<String> {
        self.inputs.model_path.clone().filter(|path| current.spec.model.path.as_ref() != Some(path))
    }
}

/// Paths of all inputs, with their fields. A model of the Hugging Face Hub is identified by its
/// revision.
fn paths(config: &RunConfig) -> Vec<(String, String)> {
    let mut spec = config.spec.clone();
    let mut paths: Vec<(String, String)> =
        paths_mut(&mut spec).into_iter().map(|(field, path)| (field, path.clone())).collect();
    if spec.model.hugging_face.is_none() {
        let folder = config.model_directory.to_string_lossy().into_owned();
        paths.push((MODEL.to_owned(), folder));
    }
    paths
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::desired::run_config;
    use crate::validate::test_support::with_spec;

    /// A project folder with a model and data.
    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("model")).unwrap();
        fs::write(folder.path().join("model/config.json"), "{}").unwrap();
        fs::write(folder.path().join("train.jsonl"), "{}\n").unwrap();
        folder
    }

    fn config(folder: &Path) -> RunConfig {
        let path = |name: &str| folder.join(name).display().to_string();
        run_config(&with_spec(&serde_json::json!({
            "model": {"path": path("model")},
            "dataset": {"train": {"path": path("train.jsonl")}},
        })))
    }

    #[test]
    fn inputs_at_another_path_with_the_same_contents_are_the_same() {
        let (before, after) = (project(), project());
        let (old, new) = (config(before.path()), config(after.path()));
        let recorded = Located::new(&Inputs::default(), None, &old, Path::new("/")).inputs;
        assert_eq!(
            recorded.contents.keys().collect::<Vec<_>>(),
            ["spec.dataset.train.path", "spec.model", "spec.model.path"]
        );
        let located = Located::new(&recorded, Some(&old), &new, Path::new("/"));
        assert_eq!(located.changed, [""; 0]);
        assert_eq!(located.at_current_paths(&recorded, old.clone()), new);
        assert_eq!(located.model_identity(&new), old.spec.model.path);
        assert_eq!(
            Located::new(&recorded, Some(&old), &old, Path::new("/")).model_identity(&old),
            None
        );

        fs::write(after.path().join("train.jsonl"), "{\"a\": 1}\n").unwrap();
        let located = Located::new(&recorded, Some(&old), &new, Path::new("/"));
        assert_eq!(located.changed, ["spec.dataset.train.path"]);
        let compared = located.at_current_paths(&recorded, old.clone());
        assert_eq!(compared.model_directory, new.model_directory);
        assert_eq!(compared.spec.dataset, old.spec.dataset, "as before, for the comparison");
    }

    #[test]
    fn a_run_without_a_record_is_compared_by_its_paths() {
        let (before, after) = (project(), project());
        let (old, new) = (config(before.path()), config(after.path()));
        let located = Located::new(&Inputs::default(), Some(&old), &new, Path::new("/"));
        assert_eq!(located.changed, [""; 0]);
        assert_eq!(located.at_current_paths(&Inputs::default(), old.clone()), old);
    }

    #[test]
    fn programs_and_functions_are_compared_at_every_start() {
        let folder = project();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let files = ["reward.py", "score.py", "log.txt", "own", "parse.py", "unused.py"];
        for name in files {
            fs::write(path(name), "1").unwrap();
        }
        fs::write(path("reward.py"), "from parse import number").unwrap();
        let rewards = serde_json::json!([
            {"name": "a", "python": {"path": path("reward.py"), "function": "f"}},
            {"name": "b", "command": {"command": ["python3", path("score.py"), path("log.txt")]}},
            {"name": "c", "command": {"command": ["/bin/sh", "-c", "cat"]}},
        ]);
        let config = run_config(&with_spec(&serde_json::json!({
            "model": {"path": path("model")},
            "dataset": {"train": {"path": path("train.jsonl")}},
            "rewards": rewards,
            "rollout": {"workflow": {"environment": {"command": {"command": [path("own")]}}}},
        })));
        let located = |recorded: &Inputs| Located::new(recorded, None, &config, folder.path());
        let recorded = located(&Inputs::default()).inputs;
        let edited = |name: &str| {
            let before = fs::read(path(name)).unwrap();
            fs::write(path(name), "2").unwrap();
            let found = located(&recorded);
            fs::write(path(name), before).unwrap();
            assert_eq!(found.changed, [""; 0]);
            found.edited
        };
        assert_eq!(edited("train.jsonl"), [""; 0], "the coordinator compares rows");
        assert_eq!(edited("log.txt"), [""; 0], "after the program");
        assert_eq!(edited("reward.py"), ["spec.rewards[0].python.path"]);
        assert_eq!(edited("parse.py"), ["spec.rewards[0].python.path (parse.py)"]);
        assert_eq!(edited("unused.py"), [""; 0], "nothing imports it");
        assert_eq!(edited("score.py"), ["spec.rewards[1].command.command[1]"]);
        let environment = "spec.rollout.workflow.environment.command.command[0]";
        assert_eq!(edited("own"), [environment]);
        fs::remove_file(path("reward.py")).unwrap();
        assert_eq!(located(&recorded).edited, ["spec.rewards[0].python.path"]);
    }
}
