//! Families of supported models, and the names of their architectures in `config.json`.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use super::Head;

/// Ends of the names of architectures.
const LANGUAGE_MODEL: &str = "ForCausalLM";
const CLASSIFIER: &str = "ForSequenceClassification";

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
        let of = |suffix: &str| match names {
            [name] => match name.strip_suffix(suffix) {
                Some("Llama") => Some(Self::Llama),
                Some("Qwen2") => Some(Self::Qwen2),
                Some("Qwen3") => Some(Self::Qwen3),
                _ => None,
            },
            _ => None,
        };
        let (suffix, other, hint) = match head {
            Head::LanguageModel | Head::Value => (LANGUAGE_MODEL, CLASSIFIER, "serves it with"),
            Head::Scalar => (CLASSIFIER, LANGUAGE_MODEL, "serves it without"),
        };
        of(suffix).ok_or_else(|| {
            let hint = match of(other) {
                Some(_) => format!("; rljob-engine {hint} --is-embedding"),
                None => String::new(),
            };
            format!(
                "architecture {names:?} is not supported, only Llama{suffix}, Qwen2{suffix} and \
                 Qwen3{suffix}{hint}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Family, Head};

    #[test]
    fn a_model_with_the_other_head_names_the_option_of_the_engine() {
        let of = |name: &str, head| Family::of(&[name.to_owned()], head);
        assert_eq!(of("Qwen3ForCausalLM", Head::LanguageModel), Ok(Family::Qwen3));
        for (name, head, hint) in [
            ("LlamaForSequenceClassification", Head::LanguageModel, "with"),
            ("LlamaForCausalLM", Head::Scalar, "without"),
        ] {
            let message = of(name, head).unwrap_err();
            let hint = format!("; rljob-engine serves it {hint} --is-embedding");
            assert!(message.contains(name) && message.ends_with(&hint), "{message}");
        }
        let message = of("GPT2LMHeadModel", Head::LanguageModel).unwrap_err();
        assert!(message.ends_with("and Qwen3ForCausalLM"), "{message}");
    }
}
