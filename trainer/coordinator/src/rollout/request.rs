//! Generation requests: a pure function of the sample key, so that a retry on any engine requests
//! the same sample.

use rljob_protocol::sglang::{GenerateRequest, SamplingParams};
use sha2::{Digest, Sha256};

use crate::engines::Place;

/// Seeds stay below 2^53: exact in every JSON reader, and positive in torch's.
const SEED_BITS: u32 = 53;

/// Purpose of a sample; part of its seed and its request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A step's batch.
    Rollout,
    /// An evaluation.
    Evaluation,
}

/// Which sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Purpose of the sample.
    pub purpose: Purpose,
    pub step: u32,
    /// Loader position (or row of the evaluation data).
    pub position: u64,
    /// Index in its group.
    pub index: u32,
    /// Turn of the conversation, from 0.
    pub turn: u32,
}

impl Key {
    /// The seed of a sample that has `kept` tokens. A continued sample gets a different seed, since
    /// engines count draws from the start of the request.
    pub fn seed(self, run_seed: u64, kept: u32) -> u64 {
        let mut digest = Sha256::new();
        digest.update(run_seed.to_le_bytes());
        digest.update([self.purpose as u8]);
        digest.update(self.step.to_le_bytes());
        digest.update(self.position.to_le_bytes());
        digest.update(self.index.to_le_bytes());
        if kept > 0 {
            digest.update(kept.to_le_bytes());
        }
        if self.turn > 0 {
            // Wider than `kept`: no turn has the seed of a continued sample.
            digest.update(u64::from(self.turn).to_le_bytes());
        }
        let bytes = digest.finalize();
        bytes.iter().take(8).fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
            >> (u64::BITS - SEED_BITS)
    }

    /// Its place among the samples that wait for an engine: evaluations of a step come after the
    /// samples that the next step trains on, and before later ones.
    pub fn place(self) -> Place {
        let beside = self.purpose == Purpose::Evaluation;
        let step = self.step.saturating_add(u32::from(beside));
        Place { step, beside, position: self.position }
    }

    /// The request id: fixed width and ended by a delimiter, because engines abort by prefix.
    fn rid(self, nonce: u64) -> String {
        let kind = match self.purpose {
            Purpose::Rollout => 'r',
            Purpose::Evaluation => 'e',
        };
        format!("{kind}.{:010}.{:020}.{:010}.{nonce:016x}.", self.step, self.position, self.index)
    }
}

/// Settings that all samples of a purpose share.
#[derive(Clone, Copy, Debug)]
pub struct Sampling<'a> {
    /// `training.seed`, if engines sample with seeds of requests.
    pub run_seed: Option<u64>,
    /// Tokens that end a completion.
    pub stop_token_ids: &'a [i64],
    /// Strings that end a completion.
    pub stop: &'a [String],
    /// Minimum length of a completion.
    pub min_new_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// 1 for all tokens.
    pub top_p: f64,
}

/// Sampling parameters of the remaining tokens of a sample of at most `longest` tokens, `kept` of
/// which exist.
pub fn parameters(key: Key, sampling: &Sampling<'_>, kept: u32, longest: u32) -> SamplingParams {
    let max_new_tokens = longest.saturating_sub(kept);
    SamplingParams {
        max_new_tokens,
        min_new_tokens: sampling.min_new_tokens.saturating_sub(kept).min(max_new_tokens),
        stop: sampling.stop.to_vec(),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: -1,
        stop_token_ids: sampling.stop_token_ids.to_vec(),
        ignore_eos: false,
        skip_special_tokens: true,
        sampling_seed: sampling.run_seed.map(|seed| key.seed(seed, kept)),
        stream_interval: None,
    }
}

/// Request for the remaining tokens of a sample of at most `longest` tokens, `kept` of which exist.
/// `nonce` tells apart tries of the same sample; `cache_key` those that share cached prefixes.
pub fn generate(
    key: Key,
    nonce: u64,
    sampling: &Sampling<'_>,
    prompt: &[i64],
    kept: &[i64],
    longest: u32,
    cache_key: Option<String>,
) -> GenerateRequest {
    GenerateRequest {
        rid: key.rid(nonce),
        input_ids: [prompt, kept].concat(),
        sampling_params: parameters(key, sampling, kept.len() as u32, longest),
        return_logprob: true,
        stream: true,
        extra_key: cache_key,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{GenerateRequest, Key, Purpose, Sampling, generate};

    const KEY: Key = Key { purpose: Purpose::Rollout, step: 1, position: 2, index: 3, turn: 0 };

    #[test]
    fn every_part_of_the_key_changes_the_seed_and_nothing_else_does() {
        let keys = [
            KEY,
            Key { purpose: Purpose::Evaluation, ..KEY },
            Key { step: 2, ..KEY },
            Key { position: 1, ..KEY },
            Key { index: 2, ..KEY },
            Key { turn: 1, ..KEY },
            Key { turn: 2, ..KEY },
        ];
        let mut seeds: BTreeSet<u64> = keys.iter().map(|key| key.seed(1, 0)).collect();
        seeds.extend([KEY.seed(2, 0), KEY.seed(1, 1), KEY.seed(1, 2)]);
        seeds.insert(Key { turn: 1, ..KEY }.seed(1, 1));
        assert_eq!(seeds.len(), 11);
        assert_eq!(KEY.seed(1, 0), KEY.seed(1, 0));
        assert!(seeds.iter().all(|seed| *seed < 1 << 53));
    }

    #[test]
    fn no_request_id_is_a_prefix_of_another() {
        let ids = [
            KEY.rid(1),
            Key { index: 30, ..KEY }.rid(1),
            Key { position: 20, ..KEY }.rid(1),
            KEY.rid(16),
        ];
        assert_eq!(ids[0], "r.0000000001.00000000000000000002.0000000003.0000000000000001.");
        assert!(ids.iter().all(|id| id.len() == ids[0].len()));
    }

    #[test]
    fn an_interrupted_sample_continues_after_its_tokens_with_a_different_seed() {
        let sampling = Sampling {
            run_seed: Some(1),
            stop_token_ids: &[2],
            stop: &["END".to_owned()],
            min_new_tokens: 5,
            temperature: 0.7,
            top_p: 0.9,
        };
        let whole = generate(KEY, 9, &sampling, &[5, 6], &[], 10, None);
        let mut rest = generate(KEY, 9, &sampling, &[5, 6], &[7, 8, 9], 10, None);
        assert_eq!(
            (rest.input_ids.as_slice(), rest.sampling_params.max_new_tokens),
            (&[5, 6, 7, 8, 9][..], 7)
        );
        assert_ne!(rest.sampling_params.sampling_seed, whole.sampling_params.sampling_seed);
        let least = |request: &GenerateRequest| request.sampling_params.min_new_tokens;
        assert_eq!((least(&whole), least(&rest)), (5, 2));
        rest.input_ids = whole.input_ids.clone();
        rest.sampling_params.min_new_tokens = 5;
        rest.sampling_params.max_new_tokens = 10;
        rest.sampling_params.sampling_seed = whole.sampling_params.sampling_seed;
        assert_eq!(rest, whole);
    }
}
