//! Prompts that samples of a prompt group share: what learners compute once, and what the
//! coordinator therefore counts once when it packs.

/// How often learners compute the prompt of samples of one prompt group in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// Once.
    Shared,
    /// Once per sample.
    Repeated,
}

impl Prompts {
    /// What learners with this number of GPUs do: those on CPUs share.
    pub fn of_gpus(gpus: u32) -> Self {
        if gpus == 0 { Self::Shared } else { Self::Repeated }
    }

    /// Number of leading tokens that the sequences, each with its loss mask, share, and of which
    /// none is trained. 0 for fewer than two sequences, and where prompts are repeated.
    pub fn shared_tokens<'a>(
        self,
        sequences: impl IntoIterator<Item = (&'a [i64], &'a [u8])>,
    ) -> usize {
        let mut sequences = sequences.into_iter();
        let (Self::Shared, Some((first, mask))) = (self, sequences.next()) else { return 0 };
        let prompt = mask.iter().take_while(|&&trained| trained == 0).count();
        let mut shared = None;
        for (tokens, mask) in sequences {
            let both = first.iter().zip(tokens).zip(mask).take(shared.unwrap_or(prompt));
            shared = Some(both.take_while(|((a, b), trained)| a == b && **trained == 0).count());
        }
        shared.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Prompts;

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
    fn learners_on_gpus_repeat_prompts() {
        let one: (&[i64], &[u8]) = (&[5, 6], &[0, 1]);
        let shared = |gpus| Prompts::of_gpus(gpus).shared_tokens([one, one]);
        assert_eq!([0, 1, 8].map(shared), [1, 0, 0]);
    }
}
