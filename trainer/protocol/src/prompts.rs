//! Prompts that samples of a prompt group share: what learners compute once, and what the
//! coordinator therefore counts once when it packs.

/// Share of the tokens that `SharedIfLong` saves at least, as a divisor.
const LEAST_SAVED: usize = 32;

/// How often learners compute the prompt of samples of one prompt group in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// Once.
    Shared,
    /// Once, if that saves at least a thirty-second of the group's tokens: on GPUs, attention over
    /// a shared prompt is a separate call.
    SharedIfLong,
}

impl Prompts {
    /// What learners with this number of GPUs do.
    pub fn of_gpus(gpus: u32) -> Self {
        if gpus == 0 { Self::Shared } else { Self::SharedIfLong }
    }

    /// Number of leading tokens that the sequences, each with its loss mask, share, and of which
    /// none is trained. 0 for fewer than two sequences, and where the prompt is computed for each.
    pub fn shared_tokens<'a>(
        self,
        sequences: impl IntoIterator<Item = (&'a [i64], &'a [u8])>,
    ) -> usize {
        let mut sequences = sequences.into_iter();
        let Some((first, mask)) = sequences.next() else { return 0 };
        let mut shared = mask.iter().take_while(|&&trained| trained == 0).count();
        let (mut others, mut all) = (0_usize, first.len());
        for (tokens, mask) in sequences {
            let both = first.iter().zip(tokens).zip(mask).take(shared);
            shared = both.take_while(|((a, b), trained)| a == b && **trained == 0).count();
            others = others.saturating_add(1);
            all = all.saturating_add(tokens.len());
        }
        let saved = shared.saturating_mul(others);
        let is_long = saved.saturating_mul(LEAST_SAVED) >= all;
        if others == 0 || (self == Self::SharedIfLong && !is_long) { 0 } else { shared }
    }
}

#[cfg(test)]
mod tests {
    use super::Prompts;

    /// Two tokens that are not trained, then trained ones.
    const MASK: [u8; 64] = {
        let mut mask = [1; 64];
        [mask[0], mask[1]] = [0, 0];
        mask
    };

    #[test]
    fn equal_untrained_tokens_at_the_start_of_all_sequences_are_shared() {
        let shared = |sequences: &[(&[i64], &[u8])]| {
            Prompts::Shared.shared_tokens(sequences.iter().copied())
        };
        let first: (&[i64], &[u8]) = (&[5, 6, 7, 8], &[0, 0, 0, 1]);
        assert_eq!(shared(&[first, first, first]), 3);
        assert_eq!(shared(&[first, (&[5, 6, 7, 8, 9], &[0, 0, 1, 1, 1])]), 2);
        assert_eq!(shared(&[first, (&[5, 6, 7], &[0, 0, 0])]), 3);
        assert_eq!(shared(&[first, (&[5, 6, 9], &[0, 0, 0]), first]), 2);
        assert_eq!(shared(&[first, (&[4, 6, 7], &[0, 0, 0])]), 0);
        assert_eq!(shared(&[first]), 0);
        assert_eq!(shared(&[]), 0);
    }

    #[test]
    fn learners_on_gpus_share_prompts_that_are_a_thirty_second_of_the_tokens() {
        let tokens = [7_i64; 64];
        let sequence = |length: usize| (&tokens[..length], &MASK[..length]);
        let shared = |gpus, length| Prompts::of_gpus(gpus).shared_tokens([sequence(length); 2]);
        assert_eq!([0, 1, 8].map(|gpus| shared(gpus, 32)), [2, 2, 2]);
        assert_eq!([0, 1, 8].map(|gpus| shared(gpus, 33)), [2, 0, 0]);
    }
}
