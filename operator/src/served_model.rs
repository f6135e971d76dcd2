//! Model that engines of a job serve: the policy, or a reward model. Pure.

use std::path::Path;

use rljob_crds::algorithm::Precision;
use rljob_crds::model::InitialWeights;
use rljob_crds::names::EXPORT_COMPLETE_FILE;
use rljob_crds::{EnginePurpose, RLJobSpec};

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
}

impl<'a> ServedModel<'a> {
    /// The model that engines of a purpose serve. `policy` is the model folder of the run.
    pub fn new(spec: &'a RLJobSpec, purpose: EnginePurpose, policy: &'a Path) -> Self {
        let served = spec.served_reward_model().filter(|_| purpose == EnginePurpose::Reward);
        let folder = served.map_or(policy, |model| Path::new(model.path));
        Self { spec, folder, is_reward_model: served.is_some() }
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
        let is_exported = !self.is_reward_model && self.spec.model.rljob.is_some();
        let wait = (self.is_downloaded() || is_exported).then(|| {
            let marker = self.folder.join(EXPORT_COMPLETE_FILE).display().to_string();
            ["sh".to_owned(), "-c".to_owned(), WAIT_SCRIPT.to_owned(), marker]
        });
        wait.into_iter().flatten().chain(command).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::test_support::{validated, with_spec};

    #[test]
    fn a_server_starts_when_the_model_folder_is_complete() {
        let mut spec = validated().spec.clone();
        let command = |spec: &RLJobSpec, folder: &Path| {
            let model = ServedModel::new(spec, EnginePurpose::Rollouts, folder);
            model.when_complete(["echo".to_owned(), "a b".to_owned()])
        };
        assert_eq!(command(&spec, Path::new("/m")), ["echo", "a b"]);
        for model in [json!({"huggingFace": {"repo": "a/b"}}), json!({"rljob": {"name": "sft"}})] {
            spec.model = serde_json::from_value(model).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let words = command(&spec, folder.path());
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
    fn a_reward_model_has_another_folder_and_another_head() {
        let model = json!({"path": "/judge", "engines": {}, "text": "{{completion}}"});
        let spec = &with_spec(&json!({
            "model": {"weights": "Random"}, "rewards": [{"name": "scored", "model": model}],
        }))
        .spec;
        let of = |purpose| ServedModel::new(spec, purpose, Path::new("/policy")).arguments("::");
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
