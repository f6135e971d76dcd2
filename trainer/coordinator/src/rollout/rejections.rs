//! Limit of rejected samples: rewards, tools and agents that reject a large share of the samples
//! would choose the data of the run. Pure, except for a lock.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Number of the newest samples that are judged. Fewer are not: a few prompts may be the cause.
pub const NEWEST: usize = 512;

/// The newest samples of this process, rejected ones included.
#[derive(Debug)]
pub struct RejectionLimit {
    max_share: f64,
    /// Whether each was rejected.
    newest: Mutex<VecDeque<bool>>,
}

impl RejectionLimit {
    pub fn new(max_share: f64) -> Self {
        Self { max_share, newest: Mutex::default() }
    }

    /// A sample is finished. Returns how many of [`NEWEST`] were rejected, if that is too many.
    pub fn add(&self, is_rejected: bool) -> Option<usize> {
        let mut newest = self.newest.lock();
        if newest.len() == NEWEST {
            newest.pop_front();
        }
        newest.push_back(is_rejected);
        let rejected = newest.iter().filter(|is_rejected| **is_rejected).count();
        let is_over = rejected as f64 > self.max_share * NEWEST as f64;
        (newest.len() == NEWEST && is_over).then_some(rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::{NEWEST, RejectionLimit};

    #[test]
    fn the_newest_samples_are_judged_once_there_are_enough() {
        let limit = RejectionLimit::new(0.5);
        let add = |is_rejected, times| (0..times).fold(None, |_, _| limit.add(is_rejected));
        assert_eq!(add(true, NEWEST - 1), None, "too few samples");
        assert_eq!(limit.add(false), Some(NEWEST - 1));
        assert_eq!((add(false, NEWEST / 2 - 2), limit.add(false)), (Some(NEWEST / 2 + 1), None));
        assert_eq!((limit.add(false), add(true, NEWEST / 2 + 1)), (None, Some(NEWEST / 2 + 1)));
    }

    #[test]
    fn a_share_of_1_rejects_any_number() {
        let limit = RejectionLimit::new(1.0);
        assert_eq!((0..2 * NEWEST).find_map(|_| limit.add(true)), None);
    }
}
