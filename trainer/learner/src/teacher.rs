//! Teacher of a distillation: a frozen language model with the policy's vocabulary, from its own
//! folder.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Capabilities;
use serde::Deserialize;
use tch::Kind;

use crate::fsdp::FrozenParameters;
use crate::model::{Model, ModelConfig, ModelError, hugging_face};
use crate::models::FrozenModel;
use crate::ranks::Ranks;

/// A teacher that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TeacherError {
    #[error("failed to load the teacher")]
    Model(#[from] ModelError),
    #[error("failed to read the tokenizer `{}`", path.display())]
    Tokenizer { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// Its log-probabilities are of other tokens.
    #[error(
        "the teacher in `{}` has another vocabulary than the policy: {what}; use a teacher with \
         the tokenizer of the policy",
        folder.display()
    )]
    Vocabulary { folder: PathBuf, what: String },
}

/// A teacher whose configuration was read and which fits the policy.
#[derive(Debug)]
pub struct Teacher {
    folder: PathBuf,
    pub model: Model,
}

impl Teacher {
    /// The teacher of a spec, if it has one and no group holds it, for a policy of this model in
    /// this folder.
    ///
    /// # Errors
    /// Its folder cannot be read, or it has another vocabulary.
    pub fn of(
        spec: &RLJobSpec,
        policy: &Model,
        policy_folder: &Path,
    ) -> Result<Option<Self>, TeacherError> {
        let teacher = spec.algorithm.capabilities().and_then(Capabilities::teacher);
        let Some(folder) = teacher.filter(|_| spec.frozen_group().is_none()) else {
            return Ok(None);
        };
        let folder = PathBuf::from(folder);
        let model = Model::new(ModelConfig::from_folder(&folder)?);
        let [own, wanted] = [&model, policy].map(|model| model.config().vocab_size);
        let what = if own < wanted {
            format!("it has logits of {own} tokens, and the policy of {wanted}")
        } else if tokens(&folder)? == tokens(policy_folder)? {
            return Ok(Some(Self { folder, model }));
        } else {
            "their tokenizer.json have other tokens".to_owned()
        };
        Err(TeacherError::Vocabulary { folder, what })
    }

    /// Checks the headers of its weights.
    ///
    /// # Errors
    /// A file cannot be read, or the weights do not fit the configuration.
    pub fn check(&self) -> Result<(), TeacherError> {
        Ok(hugging_face::check_tensors(&self.folder, self.model.layout())?)
    }

    /// The teacher with this rank's part of its weights.
    ///
    /// # Errors
    /// The weights cannot be read.
    pub fn load(self, ranks: &Rc<Ranks>, compute: Kind) -> Result<FrozenModel, TeacherError> {
        let blocks = hugging_face::read_blocks(&self.folder, self.model.layout())?;
        let parameters = FrozenParameters::new(Rc::clone(ranks), compute, blocks)?;
        Ok(FrozenModel { model: self.model, parameters })
    }
}

/// The parts of `tokenizer.json` that say which token has which id.
#[derive(Deserialize)]
struct Tokenizer {
    model: TokenizerModel,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: BTreeMap<String, i64>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    id: i64,
}

/// Ids of all tokens by their text.
fn tokens(folder: &Path) -> Result<BTreeMap<String, i64>, TeacherError> {
    let path = folder.join("tokenizer.json");
    let failed = |source| TeacherError::Tokenizer { path: path.clone(), source };
    let text = std::fs::read(&path).map_err(|error| failed(error.into()))?;
    let tokenizer: Tokenizer =
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let mut tokens = tokenizer.model.vocab;
    tokens.extend(tokenizer.added_tokens.into_iter().map(|token| (token.content, token.id)));
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{Teacher, TeacherError};
    use crate::model::{Model, ModelConfig};

    /// Writes a folder with a configuration and a tokenizer.
    fn write(folder: &Path, vocab_size: i64, vocab: &Value) {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": vocab_size, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
            "rope_theta": 10000.0,
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let added = json!([{"content": "<eos>", "id": 2}]);
        let tokenizer = json!({"model": {"vocab": vocab}, "added_tokens": added});
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    }

    #[test]
    fn a_teacher_has_every_token_of_the_policy() {
        let (policy, teacher) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(policy.path(), 4, &json!({"a": 0, "b": 1}));
        let spec = serde_json::from_value(json!({
            "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
            "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}}, "training": {"steps": 1},
            "algorithm": {"distillation": {"teacher": {"path": teacher.path()}}},
        }));
        let (spec, policy) = (spec.unwrap(), policy.path());
        let model = Model::new(ModelConfig::from_folder(policy).unwrap());
        let vocabulary = |vocab_size, vocab: Value| {
            write(teacher.path(), vocab_size, &vocab);
            match Teacher::of(&spec, &model, policy) {
                Ok(found) => {
                    found.map(|teacher| teacher.model.config().vocab_size).ok_or_else(String::new)
                }
                Err(TeacherError::Vocabulary { what, .. }) => Err(what),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(vocabulary(5, json!({"b": 1, "a": 0})), Ok(5), "padded logits");
        let fewer = "it has logits of 3 tokens, and the policy of 4";
        assert_eq!(vocabulary(3, json!({"a": 0, "b": 1})), Err(fewer.to_owned()));
        let others = "their tokenizer.json have other tokens";
        assert_eq!(vocabulary(4, json!({"a": 1, "b": 0})), Err(others.to_owned()));
    }
}
