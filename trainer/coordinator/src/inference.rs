//! Collector of what the ranks of a group of `trainer.groups` infer: the parts of one step, until
//! all of them have arrived. Performs no IO.

use parking_lot::Mutex;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::group::RankLogprobs;

use crate::persistence::journal::Inferred;

/// Place of a part: the attempt of the group, the step, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub attempt: u32,
    pub step: u32,
    pub world: u32,
}

/// Parts of the newest pass of a group.
#[derive(Debug, Default)]
pub struct Collector(Mutex<Option<Parts>>);

#[derive(Debug)]
struct Parts {
    pass: Pass,
    /// By rank.
    parts: Vec<Option<Part>>,
}

/// Part of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    seconds: f64,
    /// Indices of samples in the step's table, with the log-probabilities of their trained tokens.
    samples: Vec<(u32, Vec<f32>)>,
}

impl Part {
    /// The part of a rank with this batch.
    ///
    /// # Errors
    /// The number of log-probabilities is not that of the batch's trained tokens.
    pub fn new(batch: &RankBatch, found: RankLogprobs) -> Result<Self, String> {
        let trained = batch.loss_mask_T.iter().filter(|&&mask| mask != 0).count();
        let RankLogprobs { seconds, logprobs } = found;
        if logprobs.len() != trained {
            return Err(format!(
                "{} log-probabilities of {trained} trained tokens",
                logprobs.len()
            ));
        }
        let (mut mask, mut rest) = (batch.loss_mask_T.as_slice(), logprobs.as_slice());
        let mut samples = Vec::with_capacity(batch.header.sequences.len());
        for sequence in &batch.header.sequences {
            let (own, later) = mask.split_at_checked(sequence.tokens as usize).unwrap_or_default();
            let trained = own.iter().filter(|&&mask| mask != 0).count();
            let (own, of_later) = rest.split_at_checked(trained).unwrap_or_default();
            (mask, rest) = (later, of_later);
            samples.push((sequence.sample, own.to_vec()));
        }
        Ok(Self { seconds, samples })
    }
}

impl Collector {
    /// Adds the part of a rank below `pass.world`. Returns the result of the step with the last
    /// part. Parts of another pass are dropped.
    pub fn add(&self, pass: Pass, rank: u32, part: Part) -> Option<Inferred> {
        let mut current = self.0.lock();
        let none = || Parts { pass, parts: vec![None; pass.world as usize] };
        let mut collected = current.take().filter(|parts| parts.pass == pass).unwrap_or_else(none);
        if let Some(entry) = collected.parts.get_mut(rank as usize) {
            *entry = Some(part);
        }
        if collected.parts.iter().any(Option::is_none) {
            *current = Some(collected);
            return None;
        }
        Some(joined(collected.parts.into_iter().flatten()))
    }
}

/// The log-probabilities in the order of the samples.
fn joined(parts: impl Iterator<Item = Part>) -> Inferred {
    let (mut seconds, mut samples) = (0.0_f64, Vec::new());
    for part in parts {
        seconds = seconds.max(part.seconds);
        samples.extend(part.samples);
    }
    samples.sort_by_key(|(sample, _)| *sample);
    Inferred { seconds, logprobs: samples.into_iter().flat_map(|(_, logprobs)| logprobs).collect() }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::batch::{BatchHeader, Sequence};

    use super::*;

    /// A batch with a sequence of three tokens for each of these samples, the last two trained.
    fn batch(samples: &[u32]) -> RankBatch {
        let sequence =
            |&sample: &u32| Sequence { sample, micro_batch: 0, tokens: 3, segments: Vec::new() };
        let count = samples.len();
        RankBatch {
            header: BatchHeader {
                step: 1,
                rank: 0,
                world_size: 2,
                micro_batch_minibatch: vec![0],
                sequences: samples.iter().map(sequence).collect(),
                samples: Vec::new(),
            },
            tokens_T: vec![7; 3 * count],
            loss_mask_T: [0, 1, 1].repeat(count),
            sampler_logprobs_T: vec![0.0; 3 * count],
            teacher_logprobs_T: None,
        }
    }

    fn part(samples: &[u32], seconds: f64) -> Part {
        let logprobs = samples.iter().flat_map(|sample| [*sample as f32, 0.5]).collect();
        Part::new(&batch(samples), RankLogprobs { seconds, logprobs }).unwrap()
    }

    #[test]
    fn parts_are_joined_in_the_order_of_samples_once_all_are_there() {
        let collector = Collector::default();
        let pass = Pass { attempt: 0, step: 1, world: 2 };
        assert_eq!(collector.add(pass, 0, part(&[0, 2], 1.0)), None);
        assert_eq!(collector.add(pass, 0, part(&[0, 2], 1.0)), None, "a repeated request");
        let joined = collector.add(pass, 1, part(&[1], 3.0)).unwrap();
        assert_eq!(joined.logprobs, [0.0, 0.5, 1.0, 0.5, 2.0, 0.5]);
        assert_eq!(joined.seconds.to_bits(), 3.0_f64.to_bits());
    }

    #[test]
    fn parts_of_an_earlier_attempt_are_dropped() {
        let collector = Collector::default();
        let pass = |attempt| Pass { attempt, step: 1, world: 2 };
        assert_eq!(collector.add(pass(0), 0, part(&[0], 1.0)), None);
        assert_eq!(collector.add(pass(1), 1, part(&[1], 1.0)), None);
        assert!(collector.add(pass(1), 0, part(&[0], 1.0)).is_some());
    }

    #[test]
    fn each_trained_token_has_one_log_probability() {
        let found = RankLogprobs { seconds: 0.0, logprobs: vec![-1.0; 3] };
        let error = Part::new(&batch(&[0]), found).unwrap_err();
        assert_eq!(error, "3 log-probabilities of 2 trained tokens");
    }
}
