//! Heads of a model, and chunks of the trained tokens, so that no `[tokens, vocabulary]` matrix of
//! a whole micro-batch exists.

use std::ops::Range;

use tch::Device;

/// Maximum elements of a chunk's logits on a CPU: 64 Mi, 256 MiB in fp32.
const CHUNK_ELEMENTS: i64 = 1 << 26;
/// Maximum tokens of a chunk on a CPU.
const CHUNK_TOKENS: i64 = 1024;
/// Maximum elements of a chunk's logits on a GPU: 640 Mi, 1.25 GiB in bfloat16.
const DEVICE_CHUNK_ELEMENTS: i64 = 5 << 27;
/// Maximum tokens of a chunk on a GPU.
const DEVICE_CHUNK_TOKENS: i64 = 16_384;

/// Output layer of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Logits over the vocabulary.
    LanguageModel,
    /// One value per token, of a critic or reward model.
    Scalar,
    /// One value per token, from the final norm of another model: the value head of a policy. Such
    /// a model is its head alone.
    Value,
}

/// Chunks of the rows `0..num_tokens`.
pub fn chunks(
    num_tokens: i64,
    vocab_size: i64,
    device: Device,
) -> impl Iterator<Item = Range<i64>> {
    let rows = if device.is_cuda() {
        rows_of_device_chunk(vocab_size)
    } else {
        (CHUNK_ELEMENTS / vocab_size).clamp(1, CHUNK_TOKENS)
    };
    (0..num_tokens).step_by(rows as usize).map(move |first| first..(first + rows).min(num_tokens))
}

/// Maximum tokens of a chunk on a GPU.
pub fn rows_of_device_chunk(vocab_size: i64) -> i64 {
    (DEVICE_CHUNK_ELEMENTS / vocab_size).clamp(1, DEVICE_CHUNK_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::chunks;
    use tch::Device;

    #[test]
    fn chunks_cover_every_token_once_and_bound_the_logits() {
        let of =
            |tokens, vocab_size, device| chunks(tokens, vocab_size, device).collect::<Vec<_>>();
        assert_eq!(of(2500, 1000, Device::Cpu), [0..1024, 1024..2048, 2048..2500]);
        assert_eq!(of(700, 1 << 17, Device::Cpu), [0..512, 512..700]);
        assert_eq!(of(0, 1000, Device::Cpu), []);
        assert_eq!(of(6000, 1 << 17, Device::Cuda(0)), [0..5120, 5120..6000]);
    }
}
