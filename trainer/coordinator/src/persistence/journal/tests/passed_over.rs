//! Positions that batches passed over.

use jiff::Timestamp;
use rljob_protocol::version::Version;

use super::super::{DataPosition, Event, FixedBatch, Journal};
use super::{Place, reopened, sample};

/// Three batches of a journal with one sample at each position up to 7: positions 1 and 5 are in
/// batch 3, 4 is dropped, and 6 is in no batch.
fn with_passed_over(place: &Place) -> Journal {
    let mut journal = place.open();
    journal.put_samples(&[0, 1, 2, 3, 4, 5, 6, 7].map(|position| sample(position, 0))).unwrap();
    let batches: [(&[u64], u64, &[u64], u32); 3] =
        [(&[0, 2], 3, &[1], 0), (&[3, 7], 8, &[1, 5, 6], 1), (&[1, 5], 8, &[6], 0)];
    for (step, (positions, next_position, passed_over, dropped_groups)) in (1..).zip(batches) {
        let (positions, passed_over) = (positions.to_vec(), passed_over.to_vec());
        let others = FixedBatch::default();
        let batch =
            FixedBatch { step, positions, next_position, passed_over, dropped_groups, ..others };
        journal.fix_batch(&batch).unwrap();
    }
    journal
}

#[test]
fn samples_of_groups_that_batches_passed_over_are_pending_until_a_batch_has_them() {
    let place = Place::new();
    let mut journal = reopened(with_passed_over(&place), &place);
    let data = DataPosition { next_position: 8, passed_over: vec![6] };
    assert_eq!(journal.resume().unwrap(), (3, data.clone()));
    assert_eq!([4, 5, 6, 8].map(|position| data.has_used(position)), [true, true, false, false]);
    assert_eq!(journal.put_samples(&[sample(6, 1), sample(8, 0)]).unwrap(), 2);
    let error = journal.put_samples(&[sample(5, 1)]).unwrap_err().to_string();
    assert!(error.contains("sample 1 of position 5 comes too late"), "{error}");
    let pending = journal.pending().unwrap();
    let places = pending.iter().map(|sample| (sample.position, sample.index));
    assert_eq!(places.collect::<Vec<_>>(), [(6, 0), (6, 1), (8, 0)]);
    let (discarded, others) = journal.discard_if(6, |sample| sample.index == 0).unwrap();
    assert_eq!((discarded, others), (1, vec![pending[1]]));
    assert_eq!(journal.samples(3).unwrap(), [sample(1, 0), sample(5, 0)]);
    assert_eq!([1, 2, 3].map(|step| journal.skipped_positions(step).unwrap()), [Some(0); 3]);
}

#[test]
fn pruning_keeps_the_samples_of_groups_that_batches_passed_over() {
    let place = Place::new();
    let mut journal = with_passed_over(&place);
    assert_eq!(journal.prune_through(2).unwrap(), 5, "positions 0, 2, 3, 4 and 7");
    assert_eq!(journal.samples(3).unwrap(), [sample(1, 0), sample(5, 0)]);
    let passed_over =
        [1, 2, 3].map(|step| journal.data_position(step).unwrap().unwrap().passed_over);
    assert_eq!(passed_over, [vec![], vec![1, 5, 6], vec![6]]);
    assert_eq!(journal.prune_through(9).unwrap(), 2);
    assert_eq!(journal.pending().unwrap().len(), 1);
}

#[test]
fn a_rollback_returns_groups_that_its_step_had_passed_over() {
    let place = Place::new();
    let mut journal = with_passed_over(&place);
    let later = journal.later(2).unwrap().unwrap();
    assert_eq!((later.batches, later.samples), (1, 3), "of positions 1, 5 and 6");
    let event = Event { at: Timestamp::UNIX_EPOCH, kind: "RolledBack".into(), detail: 1.into() };
    journal.roll_back(Version { step: 2, attempt: 0 }, &[], &event).unwrap();
    let data = DataPosition { next_position: 8, passed_over: vec![1, 5, 6] };
    assert_eq!(journal.resume().unwrap(), (2, data));
    assert_eq!(journal.pending().unwrap(), []);
    let [first, again] = [sample(1, 0), sample(5, 0)];
    journal.put_samples(&[again, first]).unwrap();
    let (positions, passed_over) = (vec![1, 5], vec![6]);
    let batch =
        FixedBatch { step: 3, positions, next_position: 8, passed_over, ..FixedBatch::default() };
    journal.fix_batch(&batch).unwrap();
    assert_eq!(journal.samples(3).unwrap().len(), 2);
}
