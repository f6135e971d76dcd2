//! Turns of the samples of a micro-batch, and their rewards at its tokens. Pure.
//!
//! ```text
//!  segments   prompt │ completion 0 │ tool result │ completion 1 │ …     │ last completion
//!  rewards           │         r0 ▲ │             │         r1 ▲ │       │     the rest ▲
//! ```
//! That of the last turn is what the others leave of the sample's reward, after its penalties,
//! bounds and normalization; it includes those of turns without trained tokens.

use rljob_protocol::batch::{BatchHeader, SegmentRow, Sequence};

use crate::objective::StepAdvantages;

/// Rewards of turns at their last trained tokens, in the scale of the advantages of samples. `mask`
/// has the trained tokens. None if only last turns have rewards.
pub(super) fn turn_rewards(
    sequences: &[Sequence],
    mask: &[u8],
    header: &BatchHeader,
    advantages: &StepAdvantages,
) -> Option<Vec<f32>> {
    let (mut rewards, mut end) = (vec![0.0; mask.len()], 0);
    let mut rests = Vec::new();
    for sequence in sequences {
        let of_turns = &header.samples[sequence.sample as usize].turn_rewards;
        let scale = advantages.samples[sequence.sample as usize].reward_scale;
        let (start, earlier) = (end, of_turns.len().saturating_sub(1));
        end += sequence.tokens as usize;
        // Last trained token of each turn.
        let (mut last, mut token) = (vec![None; earlier], start);
        for segment in &sequence.segments {
            token += segment.tokens as usize;
            if let Some(last) = last.get_mut(segment.turn as usize)
                && segment.tokens > 0
                && mask[token - 1] != 0
            {
                *last = Some(token - 1);
            }
        }
        let mut rest = advantages.samples[sequence.sample as usize].advantage;
        for (last, reward) in last.into_iter().zip(of_turns) {
            if let Some(token) = last {
                rewards[token] += (reward * scale) as f32;
                rest -= reward * scale;
            }
        }
        rests.extend((start..end).rev().find(|token| mask[*token] != 0).map(|token| (token, rest)));
    }
    if rewards.iter().all(|reward| *reward == 0.0) {
        return None;
    }
    for (token, rest) in rests {
        rewards[token] += rest as f32;
    }
    Some(rewards)
}

/// First trained token of each turn, numbered among the trained tokens, which `mask` has. A turn
/// without trained tokens has none.
pub(super) fn turn_starts(sequences: &[Sequence], mut mask: &[u8]) -> Vec<i64> {
    let (mut starts, mut trained) = (Vec::new(), 0);
    for sequence in sequences {
        let one_turn = [SegmentRow { turn: 0, tokens: sequence.tokens, version: None }];
        let segments =
            if sequence.segments.is_empty() { &one_turn[..] } else { &sequence.segments };
        let mut previous = None;
        for segment in segments {
            let (own, rest) = mask.split_at(segment.tokens as usize);
            mask = rest;
            let count = own.iter().filter(|trained| **trained != 0).count() as i64;
            if count > 0 && previous != Some(segment.turn) {
                starts.push(trained);
                previous = Some(segment.turn);
            }
            trained += count;
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use rljob_protocol::batch::{BatchHeader, SampleRow, SegmentRow, Sequence};

    use super::{turn_rewards, turn_starts};
    use crate::objective::StepAdvantages;
    use crate::objective::advantages::SampleAdvantage;

    /// Two samples of rewards by turn. Their sequences have a prompt of two tokens, and turns of
    /// two and three tokens with one token between them.
    fn rewards(of_turns: [&[f64]; 2], scale: f64) -> Option<Vec<f32>> {
        let row = |turn_rewards: &[f64]| SampleRow {
            group: 0,
            reward: turn_rewards.iter().sum(),
            trainable_tokens: 5,
            rank: 0,
            minibatch: 0,
            truncated: false,
            ended_by_limit: false,
            turn_rewards: turn_rewards.to_vec(),
        };
        let segment = |turn, tokens, version| SegmentRow { turn, tokens, version };
        let sampled = [segment(0, 1, Some(1)), segment(0, 1, Some(2))];
        let further = [segment(1, 1, None), segment(1, 3, Some(2))];
        let segments = [&[segment(0, 2, None)], &sampled[..], &further].concat();
        let sequence =
            |sample| Sequence { sample, micro_batch: 0, tokens: 8, segments: segments.clone() };
        let header = BatchHeader {
            step: 1,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0],
            sequences: vec![sequence(1), sequence(0)],
            samples: of_turns.map(row).to_vec(),
        };
        let sample = SampleAdvantage {
            group: 0,
            advantage: 3.0,
            reward_scale: scale,
            weight: 1.0,
            trainable_tokens: 5,
            truncated: false,
        };
        let advantages = StepAdvantages { samples: vec![sample; 2], groups: 1 };
        let mask = [[0, 0, 1, 1, 0, 1, 1, 1]; 2].concat();
        turn_rewards(&header.sequences, &mask, &header, &advantages)
    }

    #[test]
    fn rewards_of_turns_are_at_their_last_tokens_in_the_scale_of_the_advantages() {
        let mut expected = vec![0.0; 16];
        (expected[3], expected[11]) = (-1.0, 0.5);
        (expected[7], expected[15]) = (4.0, 2.5);
        assert_eq!(rewards([&[0.25, 1.0], &[-0.5, 0.0]], 2.0), Some(expected));
    }

    #[test]
    fn one_turn_and_turns_without_rewards_have_none() {
        assert_eq!(rewards([&[1.0], &[0.5]], 1.0), None);
        assert_eq!(rewards([&[0.0, 1.0], &[0.0, 0.5]], 1.0), None);
        assert_eq!(rewards([&[], &[0.5, 1.0]], 0.0), None);
    }

    #[test]
    fn a_turn_starts_with_its_first_trained_token_whatever_weights_sampled_it() {
        let sequence = |segments: &[(u32, u32)]| Sequence {
            sample: 0,
            micro_batch: 0,
            tokens: segments.iter().map(|(_, tokens)| tokens).sum(),
            segments: segments
                .iter()
                .map(|(turn, tokens)| SegmentRow { turn: *turn, tokens: *tokens, version: None })
                .collect(),
        };
        // A prompt and a turn of two weights; a tool result and a turn; a turn that is masked.
        let first = sequence(&[(0, 2), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]);
        let second = sequence(&[(0, 1), (0, 2)]);
        let masks = [&[0, 0, 1, 1, 1, 0, 1, 1, 0, 0][..], &[0, 1, 1]];
        let both = [first.clone(), second.clone()];
        assert_eq!(turn_starts(&both, &masks.concat()), [0, 3, 5]);
        // The first sample is excluded from the loss; a coordinator without segments has one turn.
        assert_eq!(turn_starts(&both, &[&[0; 10][..], masks[1]].concat()), [0]);
        let without = [Sequence { segments: Vec::new(), ..first }, second];
        assert_eq!(turn_starts(&without, &masks.concat()), [0, 5]);
    }
}
