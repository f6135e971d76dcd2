//! Token ids and log-probabilities as blobs: little-endian, 8 and 4 bytes an entry, as in the
//! batches that learners get.

/// The length of a blob is not a multiple of its entry size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{bytes} bytes are no whole number of entries of {entry} bytes")]
pub struct Ragged {
    bytes: usize,
    entry: usize,
}

pub fn from_tokens(tokens: &[i64]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

pub fn to_tokens(bytes: &[u8]) -> Result<Vec<i64>, Ragged> {
    entries(bytes).map(|entries| entries.iter().map(|&entry| i64::from_le_bytes(entry)).collect())
}

pub fn from_logprobs(logprobs: &[f32]) -> Vec<u8> {
    logprobs.iter().flat_map(|logprob| logprob.to_le_bytes()).collect()
}

pub fn to_logprobs(bytes: &[u8]) -> Result<Vec<f32>, Ragged> {
    entries(bytes).map(|entries| entries.iter().map(|&entry| f32::from_le_bytes(entry)).collect())
}

fn entries<const N: usize>(bytes: &[u8]) -> Result<&[[u8; N]], Ragged> {
    match bytes.as_chunks() {
        (entries, []) => Ok(entries),
        _ => Err(Ragged { bytes: bytes.len(), entry: N }),
    }
}
