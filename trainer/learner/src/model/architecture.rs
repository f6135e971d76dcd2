//! Families of supported models, and the names of their architectures in `config.json`.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use super::Head;

/// Family of models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

impl Family {
    /// The family of a model with this head.
    ///
    /// # Errors
    /// The architecture is another one.
    pub fn of(names: &[String], head: Head) -> Result<Self, String> {
        let suffix = match head {
            Head::LanguageModel => "ForCausalLM",
            Head::Scalar => "ForSequenceClassification",
        };
        let family = match names {
            [name] => name.strip_suffix(suffix),
            _ => None,
        };
        match family {
            Some("Llama") => Ok(Self::Llama),
            Some("Qwen2") => Ok(Self::Qwen2),
            Some("Qwen3") => Ok(Self::Qwen3),
            _ => Err(format!(
                "architecture {names:?} is not supported, only Llama{suffix}, Qwen2{suffix} and \
                 Qwen3{suffix}"
            )),
        }
    }
}
