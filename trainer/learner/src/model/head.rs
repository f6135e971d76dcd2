//! Heads of a model, and chunks of the trained tokens, so that no `[tokens, vocabulary]` matrix of
//! a whole micro-batch exists.

use std::ops::Range;

/// Maximum elements of a chunk's logits: 64 Mi, 256 MiB in fp32.
const CHUNK_ELEMENTS: i64 = 1 << 26;
/// Maximum tokens of a chunk.
const CHUNK_TOKENS: i64 = 1024;

/// Output layer of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Logits over the vocabulary.
    LanguageModel,
    /// One value per token, of a critic or reward model.
    Scalar,
}

/// Chunks of the rows `0..num_tokens`.
pub fn chunks(num_tokens: i64, vocab_size: i64) -> impl Iterator<Item = Range<i64>> {
    let rows = (CHUNK_ELEMENTS / vocab_size).clamp(1, CHUNK_TOKENS);
    (0..num_tokens).step_by(rows as usize).map(move |first| first..(first + rows).min(num_tokens))
}

#[cfg(test)]
mod tests {
    use super::chunks;

    #[test]
    fn chunks_cover_every_token_once_and_bound_the_logits() {
        assert_eq!(chunks(2500, 1000).collect::<Vec<_>>(), [0..1024, 1024..2048, 2048..2500]);
        assert_eq!(chunks(700, 1 << 17).collect::<Vec<_>>(), [0..512, 512..700]);
        assert_eq!(chunks(0, 1000).count(), 0);
    }
}
