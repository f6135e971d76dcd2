//! Texts with their tokens, which tell the tokenizer of a policy from others.

use crate::reward::TokenizerMismatch;
use crate::text::{TextError, TextTokenizer};

/// Letters, digits, spaces and symbols that tokenizers split differently. Each fits a short
/// context.
const TEXTS: [&str; 8] = [
    "The quick brown fox jumps over the lazy dog.",
    "unbelievable internationalization, couldn't've",
    "0123456789 31415926 2.71828 1,000,000",
    "a=1+2*(3-4)/5; b[0]!=c && d|e^f%g~h",
    "def f(x):\n    return {'a': x ** 2}\n\n\tpass  # x",
    "Größe, façade, naïve, señor, Привет",
    "你好，世界。こんにちは",
    "😀👍🏽 ∑∫√ ≤ → “quotes” — …",
];

/// Texts with the tokens of a policy's tokenizer, without added special tokens.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// The policy, for messages.
    policy: String,
    texts: Vec<(&'static str, Vec<i64>)>,
}

impl Probes {
    /// Probes of the tokenizer of `policy`. Texts without tokens are omitted.
    ///
    /// # Errors
    /// A text cannot be tokenized.
    pub fn new(policy: &str, tokenizer: &TextTokenizer) -> Result<Self, TextError> {
        let texts = TEXTS.into_iter().map(|text| Ok((text, tokenizer.encode(text)?)));
        let mut texts = texts.collect::<Result<Vec<_>, TextError>>()?;
        texts.retain(|(_, tokens)| !tokens.is_empty());
        Ok(Self::of(policy, texts))
    }

    /// Probes with these tokens.
    pub(super) fn of(policy: &str, texts: Vec<(&'static str, Vec<i64>)>) -> Self {
        Self { policy: policy.to_owned(), texts }
    }

    /// The error of a teacher with other tokens of a text.
    pub(super) fn mismatch(
        &self,
        teacher: String,
        text: &'static str,
        found: Vec<i64>,
        expected: &[i64],
    ) -> TokenizerMismatch {
        let (policy, expected) = (self.policy.clone(), expected.to_vec());
        TokenizerMismatch { teacher, policy, text, found, expected }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[i64])> {
        self.texts.iter().map(|(text, tokens)| (*text, tokens.as_slice()))
    }
}
