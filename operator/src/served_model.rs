//! Model that engines of a job serve: the policy, or a reward model. Pure.

use std::path::Path;

use rljob_crds::algorithm::Precision;
use rljob_crds::model::InitialWeights;
use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR, EXPORTS_DIR};
use rljob_crds::{EnginePurpose, RLJobSpec, RunConfig};

/// Becomes the command `$@` once the file `$0` exists. As process 1 of a container a shell ignores
/// SIGTERM unless it has a handler.
const WAIT_SCRIPT: &str = "trap 'exit 143' TERM; until [ -e \"$0\" ]; do sleep 1 & wait $!; done; \
    trap - TERM; exec \"$@\"";

/// A model folder, and how engines read it.
#[derive(Clone, Copy, Debug)]
pub struct ServedModel<'a> {
    spec: &'a RLJobSpec,
    folder: &'a Path,
    is_reward_model: bool,
    /// Whether another job writes the folder.
    is_exported: bool,
}

impl<'a> ServedModel<'a> {
    /// The model that engines of a purpose serve.
    pub fn new(config: &'a RunConfig, purpose: EnginePurpose) -> Self {
        let spec = &config.spec;
        let served = spec.served_reward_model().filter(|_| purpose == EnginePurpose::Reward);
        let reward_model = served.map(|model| Path::new(model.path));
        let is_exported = match reward_model {
            Some(folder) => is_export(folder, &config.run_directory),
            None => spec.model.rljob.is_some(),
        };
        let folder = reward_model.unwrap_or(&config.model_directory);
        Self { spec, folder, is_reward_model: reward_model.is_some(), is_exported }
    }

    /// Whether it scores texts instead of completing them.
    pub fn is_reward_model(self) -> bool {
        self.is_reward_model
    }

    /// Whether the coordinator downloads it while engines start.
    pub fn is_downloaded(self) -> bool {
        !self.is_reward_model && self.spec.model.hugging_face.is_some()
    }

    /// Flags that SGLang and `rljob-engine` share.
    pub fn arguments(self, host: &str) -> Vec<String> {
        let is_random = self.spec.model.weights == InitialWeights::Random && !self.is_reward_model;
        let dtype = if self.spec.precision() == Precision::BF16 { "bfloat16" } else { "float32" };
        let mut arguments = vec![
            format!("--model-path={}", self.folder.display()),
            format!("--host={host}"),
            format!("--load-format={}", if is_random { "dummy" } else { "auto" }),
            format!("--dtype={dtype}"),
            format!("--random-seed={}", self.spec.training.seed),
            // The coordinator reads streams whose events have only new tokens.
            "--incremental-streaming-output".to_owned(),
        ];
        if self.is_reward_model {
            arguments.push("--is-embedding".to_owned());
        }
        arguments
    }

    /// Starts `command` once the folder is complete, if the coordinator downloads it or another job
    /// exports it.
    pub fn when_complete(self, command: impl IntoIterator<Item = String>) -> Vec<String> {
        let wait = (self.is_downloaded() || self.is_exported).then(|| {
            let marker = self.folder.join(EXPORT_COMPLETE_FILE).display().to_string();
            ["sh".to_owned(), "-c".to_owned(), WAIT_SCRIPT.to_owned(), marker]
        });
        wait.into_iter().flatten().chain(command).collect()
    }
}

/// Whether a folder is an export in one of the run directories beside this one,
/// `RUNS/NAMESPACE/NAME/export` or `RUNS/NAMESPACE/NAME/exports/step-N`.
fn is_export(folder: &Path, run_directory: &Path) -> bool {
    let runs = run_directory.ancestors().nth(2);
    let Some(in_runs) = runs.and_then(|runs| folder.strip_prefix(runs).ok()) else { return false };
    let parts: Vec<_> = in_runs.iter().skip(2).collect();
    matches!(parts[..], [last] if last == EXPORT_DIR)
        || matches!(parts[..], [parent, _] if parent == EXPORTS_DIR)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::desired::run_config;
    use crate::validate::test_support::{validated, with_spec};

    #[test]
    fn a_server_starts_when_the_model_folder_is_complete() {
        let mut config = run_config(&validated());
        let command = |config: &RunConfig| {
            let model = ServedModel::new(config, EnginePurpose::Rollouts);
            model.when_complete(["echo".to_owned(), "a b".to_owned()])
        };
        assert_eq!(command(&config), ["echo", "a b"]);
        for model in [json!({"huggingFace": {"repo": "a/b"}}), json!({"rljob": {"name": "sft"}})] {
            config.spec.model = serde_json::from_value(model).unwrap();
            let folder = tempfile::tempdir().unwrap();
            config.model_directory = folder.path().to_owned();
            let words = command(&config);
            let mut child = std::process::Command::new(&words[0])
                .args(&words[1..])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(child.try_wait().unwrap().is_none());
            std::fs::write(folder.path().join("complete.json"), "{}").unwrap();
            assert_eq!(child.wait_with_output().unwrap().stdout, b"a b\n");
        }
    }

    #[test]
    fn a_server_of_a_reward_model_waits_for_the_export_of_another_job() {
        let waits = |path: &str| {
            let model = json!({"path": path, "engines": {}, "text": "{{completion}}"});
            let config =
                run_config(&with_spec(&json!({"rewards": [{"name": "scored", "model": model}]})));
            let command = ServedModel::new(&config, EnginePurpose::Reward)
                .when_complete(["serve".to_owned()]);
            let marker = format!("{path}/complete.json");
            command.len() > 1 && command.contains(&marker)
        };
        for path in ["/rljob/runs/lab/judge/export", "/rljob/runs/lab/judge/exports/step-20"] {
            assert!(waits(path), "{path}");
        }
        for path in ["/judge/export", "/rljob/runs/lab/judge", "/rljob/runs/lab/judge/export/a/b"] {
            assert!(!waits(path), "{path}");
        }
    }

    #[test]
    fn a_reward_model_has_another_folder_and_another_head() {
        let model = json!({"path": "/judge", "engines": {}, "text": "{{completion}}"});
        let mut config = run_config(&with_spec(&json!({
            "model": {"weights": "Random"}, "rewards": [{"name": "scored", "model": model}],
        })));
        config.model_directory = "/policy".into();
        let of = |purpose| ServedModel::new(&config, purpose).arguments("::");
        let policy = of(EnginePurpose::Rollouts);
        assert_eq!(policy[0], "--model-path=/policy");
        assert_eq!(policy[2], "--load-format=dummy");
        assert!(!policy.contains(&"--is-embedding".to_owned()));
        let reward = of(EnginePurpose::Reward);
        assert_eq!(reward[0], "--model-path=/judge");
        assert_eq!(reward[2], "--load-format=auto");
        assert_eq!(reward.last().unwrap(), "--is-embedding");
    }
}
