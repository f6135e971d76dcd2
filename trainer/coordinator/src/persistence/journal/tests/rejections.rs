//! Rejected tries of samples and batches.

use super::super::{FixedBatch, Pending, Rejections};
use super::{Place, reopened, sample};

#[test]
fn rejected_tries_are_known_after_a_crash() {
    let place = Place::new();
    let mut journal = place.open();
    journal
        .put_samples(&[sample(0, 0), sample(1, 0), sample(1, 1).with_rejected_tries(2)])
        .unwrap();
    let rejections = Rejections { samples: 3, groups: 1 };
    let positions = vec![0];
    let batch =
        FixedBatch { step: 1, positions, next_position: 1, rejections, ..FixedBatch::default() };
    journal.fix_batch(&batch).unwrap();
    let journal = reopened(journal, &place);
    let found = [1, 2].map(|step| journal.rejections(step).unwrap());
    assert_eq!(found, [rejections, Rejections::default()]);
    let first =
        Pending { position: 1, index: 0, reward: 0.1 + 0.2, tokens: 3, oldest: 3, rejected: 0 };
    let second = Pending { index: 1, rejected: 2, ..first };
    assert_eq!(journal.pending().unwrap(), [first, second]);
}
