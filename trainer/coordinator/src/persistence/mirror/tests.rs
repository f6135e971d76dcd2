//! Journal mirror on a real S3 server: restore, superseded coordinators, rejected entries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use parking_lot::Mutex;
use rljob_crds::BucketConfig;
use rljob_protocol::version::Version;
use rljob_storage::Bucket;
use rljob_tests::S3;
use rljob_tests::s3::{ACCESS_KEY, BUCKET, SECRET_KEY};
use serde_json::json;
use tempfile::TempDir;

use super::{Journal, Mirror, MirrorError, WHOLE_EVERY};
use crate::persistence::journal::{FixedBatch, Sample, Segment, VersionRun};

const LOG: &str = "lab/job/journal/log/";
const SAMPLES: &str = "lab/job/journal/samples/";

/// A coordinator's machine.
struct Machine {
    _scratch: TempDir,
    mirror: Mirror,
    journal: Mutex<Journal>,
}

impl Machine {
    fn new(s3: &S3, incarnation: u64) -> Result<Self, MirrorError> {
        let scratch = tempfile::tempdir().unwrap();
        let (mirror, journal) = Mirror::restore(
            bucket(s3, scratch.path()),
            scratch.path(),
            &scratch.path().join("journal"),
            incarnation,
        )?;
        Ok(Self { _scratch: scratch, mirror, journal: Mutex::new(journal) })
    }

    fn call<T>(&self, call: impl FnOnce(&mut Journal) -> T) -> T {
        call(&mut self.journal.lock())
    }

    fn state(&self, value: u64) -> Result<(), MirrorError> {
        self.call(|journal| journal.put_state("run", &json!(value)).unwrap());
        self.mirror.save(&self.journal)
    }

    /// Fixes a step's batch of one sample.
    fn fix(&self, step: u32) {
        let (position, next_position) = (u64::from(step - 1), u64::from(step));
        let batch =
            FixedBatch { step, positions: vec![position], next_position, ..FixedBatch::default() };
        self.call(|journal| {
            journal
                .put_samples(&[sample(position)])
                .and_then(|_| journal.fix_batch(&batch))
                .unwrap();
        });
        self.mirror.save(&self.journal).unwrap();
    }
}

/// The run's part of the bucket.
pub(crate) fn bucket(s3: &S3, keys: &Path) -> Bucket {
    fs::write(keys.join("AWS_ACCESS_KEY_ID"), ACCESS_KEY).unwrap();
    fs::write(keys.join("AWS_SECRET_ACCESS_KEY"), SECRET_KEY).unwrap();
    let (bucket, prefix, region) =
        (BUCKET.to_owned(), "lab/job".to_owned(), "us-east-1".to_owned());
    Bucket::open(&BucketConfig {
        bucket,
        prefix,
        endpoint: Some(s3.endpoint()),
        region,
        credentials: Some(keys.to_owned()),
    })
    .unwrap()
}

fn sample(position: u64) -> Sample {
    Sample {
        position,
        index: 0,
        row: 7,
        segments: vec![
            Segment::given(0, vec![1], "p".to_owned()),
            Segment {
                turn: 0,
                tokens: vec![2, 3],
                trained: true,
                sampler_logprobs: vec![-0.1, f32::MIN_POSITIVE],
                teacher_logprobs: Vec::new(),
                versions: vec![VersionRun { version: Version { step: 0, attempt: 0 }, tokens: 2 }],
                text: "c".to_owned(),
            },
        ],
        finish_reason: "stop".to_owned(),
        sampling: json!({}),
        reward: 0.1 + 0.2,
        turn_rewards: vec![0.1 + 0.2],
        metadata: serde_json::Map::new(),
        reward_components: BTreeMap::new(),
    }
}

#[test]
fn what_was_saved_comes_back_on_another_machine_and_samples_go_with_the_checkpoints() {
    let s3 = S3::start().unwrap();
    let first = Machine::new(&s3, 0xa).unwrap();
    first.state(1).unwrap();
    (1..=3).for_each(|step| first.fix(step));
    first.call(|journal| journal.put_samples(&[sample(9)]).unwrap());
    assert_eq!(
        (s3.keys(LOG).len(), s3.keys(SAMPLES)),
        (4, [1, 2, 3].map(|step| format!("{SAMPLES}{step}.a")).to_vec())
    );
    drop(first);

    let second = Machine::new(&s3, 0xb).unwrap();
    assert_eq!(second.call(|journal| journal.get_state("run").unwrap()), Some(json!(1)));
    assert_eq!(
        second.call(|journal| (journal.newest_batch().unwrap(), journal.samples(2).unwrap())),
        ((3, 3), vec![sample(1)])
    );
    assert_eq!(second.call(|journal| journal.pending().unwrap()), []);
    second.call(|journal| journal.prune_through(2).unwrap());
    second.mirror.tidy(&second.journal).unwrap();
    assert_eq!(s3.keys(SAMPLES), [format!("{SAMPLES}3.a")]);
    second.fix(4);
    let third = Machine::new(&s3, 0xc).unwrap();
    assert_eq!(
        third.call(|journal| [3, 4].map(|step| journal.samples(step).unwrap())),
        [vec![sample(2)], vec![sample(3)]]
    );
}

#[test]
fn a_superseded_coordinator_fails_and_changes_nothing() {
    let s3 = S3::start().unwrap();
    let old = Machine::new(&s3, 1).unwrap();
    old.state(1).unwrap();
    let new = Machine::new(&s3, 2).unwrap();
    new.state(2).unwrap();
    let refused = old.state(3).unwrap_err().to_string();
    let expected = format!(
        "another coordinator of this run has written `s3://{BUCKET}/{LOG}{:020}`: this one was \
            replaced and must stop",
        1
    );
    assert_eq!((refused, old.mirror.replaced.is_cancelled()), (expected, true));
    assert!(matches!(old.state(3), Err(MirrorError::Replaced(_))), "whatever it tries");
    new.state(4).unwrap();
    let third = Machine::new(&s3, 3).unwrap();
    assert_eq!(
        third.call(|journal| (journal.get_state("run").unwrap(), journal.newest_batch().unwrap())),
        (Some(json!(4)), (0, 0))
    );
}

#[test]
fn the_log_is_compacted_and_missing_or_altered_entries_are_rejected() {
    let s3 = S3::start().unwrap();
    let first = Machine::new(&s3, 1).unwrap();
    (0..WHOLE_EVERY + 3).for_each(|value| first.state(value).unwrap());
    assert_eq!(s3.keys(LOG), [0, 1, 2].map(|more| format!("{LOG}{:020}", WHOLE_EVERY + more)));
    assert_eq!(
        Machine::new(&s3, 2).unwrap().call(|journal| journal.get_state("run").unwrap()),
        Some(json!(WHOLE_EVERY + 2))
    );
    let entry = s3.objects().join(format!("{LOG}{:020}", WHOLE_EVERY + 1));
    let mut bytes = fs::read(&entry).unwrap();
    bytes[100] ^= 1;
    fs::write(&entry, bytes).unwrap();
    let torn = |detail: &str| {
        format!(
            "the journal in the bucket is corrupted: `s3://{BUCKET}/{LOG}{:020}` {detail}",
            WHOLE_EVERY + 1
        )
    };
    let refused = || Machine::new(&s3, 3).err().unwrap().to_string();
    assert_eq!(refused(), torn("was altered"));
    fs::remove_file(&entry).unwrap();
    assert_eq!(refused(), torn("is missing"));
}

/// What a call wrote while the server was away goes with the next one.
#[test]
fn calls_wait_for_an_unavailable_server_and_are_saved_afterwards() {
    let mut s3 = S3::start().unwrap();
    let first = Machine::new(&s3, 1).unwrap();
    first.state(1).unwrap();
    let mirror = Mirror {
        bucket: first.mirror.bucket.clone().with_retry_limit(std::time::Duration::ZERO),
        ..first.mirror
    };
    let first = Machine { mirror, ..first };
    s3.kill().unwrap();
    assert!(matches!(first.state(2), Err(MirrorError::Storage(_))));
    first.call(|journal| journal.put_state("other", &json!(3)).unwrap());
    assert!(matches!(first.state(4), Err(MirrorError::Storage(_))));
    s3.restart().unwrap();
    first.mirror.save(&first.journal).unwrap();
    let second = Machine::new(&s3, 2).unwrap();
    assert_eq!(
        second.call(|journal| ["run", "other"].map(|key| journal.get_state(key).unwrap().unwrap())),
        [json!(4), json!(3)]
    );
}
