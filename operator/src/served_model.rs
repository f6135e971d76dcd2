//! Model that engines of a job serve: the policy, a reward model or a teacher. Pure.

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
    purpose: EnginePurpose,
    /// Whether another job writes the folder.
    is_exported: bool,
}

impl<'a> ServedModel<'a> {
    /// The model that engines of a purpose serve.
    pub fn new(config: &'a RunConfig, purpose: EnginePurpose) -> Self {
        let spec = &config.spec;
        let fixed = spec.fixed_model(purpose).map(|model| Path::new(model.path));
        let is_exported = match fixed {
            Some(folder) => is_export(folder, &config.run_directory),
            None => spec.model.rljob.is_some(),
        };
        Self { spec, folder: fixed.unwrap_or(&config.model_directory), purpose, is_exported }
    }

    /// Whether it scores texts instead of completing them.
    fn is_reward_model(self) -> bool {
        self.purpose == EnginePurpose::Reward
    }

    /// Whether it is the model that the run trains or evaluates.
    fn is_policy(self) -> bool {
        self.purpose.fixed_model().is_none()
    }

    /// Whether requests have texts: of a reward model, those to score, and of a teacher, those that
    /// compare its tokenizer with the policy's.
    pub fn is_given_texts(self) -> bool {
        !self.is_policy()
    }

    /// Whether the coordinator downloads it while engines start.
    pub fn is_downloaded(self) -> bool {
        self.is_policy() && self.spec.model.hugging_face.is_some()
    }

    /// Flags that SGLang and `rljob-engine` share.
    pub fn arguments(self, host: &str) -> Vec<String> {
        let is_random = self.spec.model.weights == InitialWeights::Random && self.is_policy();
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
        if self.is_reward_model() {
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

    /// A job with engines of a reward model and of a teacher, both in this folder.
    fn with_fixed_models(path: &str) -> RunConfig {
        let model = json!({"path": path, "engines": {}, "text": "{{completion}}"});
        run_config(&with_spec(&json!({
            "model": {"weights": "Random"}, "rewards": [{"name": "scored", "model": model}],
            "algorithm": {
                "grpo": null, "distillation": {"teacher": {"path": path, "engines": {}}},
            },
        })))
    }

    const FIXED: [EnginePurpose; 2] = [EnginePurpose::Reward, EnginePurpose::Teacher];

    #[test]
    fn a_server_of_a_fixed_model_waits_for_the_export_of_another_job() {
        let waits = |path: &str, purpose: EnginePurpose| {
            let config = with_fixed_models(path);
            let command = ServedModel::new(&config, purpose).when_complete(["serve".to_owned()]);
            let marker = format!("{path}/complete.json");
            command.len() > 1 && command.contains(&marker)
        };
        for path in ["/rljob/runs/lab/judge/export", "/rljob/runs/lab/judge/exports/step-20"] {
            assert_eq!(FIXED.map(|purpose| waits(path, purpose)), [true; 2], "{path}");
        }
        for path in ["/judge/export", "/rljob/runs/lab/judge", "/rljob/runs/lab/judge/export/a/b"] {
            assert_eq!(FIXED.map(|purpose| waits(path, purpose)), [false; 2], "{path}");
        }
    }

    #[test]
    fn fixed_models_have_another_folder_and_only_a_reward_model_another_head() {
        let config = RunConfig { model_directory: "/policy".into(), ..with_fixed_models("/fixed") };
        let model = |purpose| ServedModel::new(&config, purpose);
        let of = |purpose| model(purpose).arguments("::");
        let policy = of(EnginePurpose::Rollouts);
        assert_eq!(policy[0], "--model-path=/policy");
        assert_eq!(policy[2], "--load-format=dummy");
        let scores = "--is-embedding".to_owned();
        assert!(!policy.contains(&scores));
        for purpose in FIXED {
            let fixed = of(purpose);
            assert_eq!([&fixed[0], &fixed[2]], ["--model-path=/fixed", "--load-format=auto"]);
            assert_eq!(fixed.contains(&scores), purpose == EnginePurpose::Reward);
        }
        let texts = [EnginePurpose::Rollouts, EnginePurpose::Reward, EnginePurpose::Teacher];
        assert_eq!(texts.map(|purpose| model(purpose).is_given_texts()), [false, true, true]);
    }
}
