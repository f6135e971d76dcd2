//! Durable samples per second of the journal, with 1,000 tokens per sample and calls of the size
//! that rollouts make. Alternates with plain appends of the same bytes, with one `fdatasync` per
//! call.
//!
//! The target is 5,000 samples per second, or the rate of plain appends if that is lower.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use rljob_coordinator::persistence::journal::{Journal, Sample, Segment, VersionRun};
use rljob_protocol::version::Version;
use rljob_tests::bench::{Aim, in_turn, row};
use serde_json::json;

const CALLS: u64 = 8;
const SAMPLES: u64 = 512;
const TOKENS: usize = 1000;
const PROMPT: usize = 200;
const ROUNDS: usize = 5;
const AIM: f64 = 5000.0;

fn sample(position: u64) -> Sample {
    let tokens = |first: i64, count: usize| {
        (0..count as i64).map(|index| (first + index * 7919) % 50_000).collect::<Vec<_>>()
    };
    Sample {
        position,
        index: 0,
        row: position,
        segments: vec![
            Segment::given(0, tokens(position as i64, PROMPT), "word ".repeat(PROMPT)),
            Segment {
                turn: 0,
                tokens: tokens(position as i64 + 1, TOKENS - PROMPT),
                trained: true,
                sampler_logprobs: (0..TOKENS - PROMPT)
                    .map(|index| -(index as f32).sin().abs())
                    .collect(),
                teacher_logprobs: Vec::new(),
                versions: vec![VersionRun {
                    version: Version { step: 1, attempt: 0 },
                    tokens: (TOKENS - PROMPT) as u32,
                }],
                text: "word ".repeat(TOKENS - PROMPT),
            },
        ],
        finish_reason: "stop".to_owned(),
        sampling: json!({
            "max_new_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
            "stop_token_ids": [2], "sampling_seed": position,
        }),
        reward: 1.0,
        turn_rewards: vec![1.0],
        metadata: serde_json::Map::new(),
        reward_components: BTreeMap::from([("math".to_owned(), 1.0)]),
    }
}

/// Bytes of the large fields of a sample.
fn bytes(sample: &Sample) -> usize {
    let of = |segment: &Segment| {
        8 * segment.tokens.len() + 4 * segment.sampler_logprobs.len() + segment.text.len()
    };
    sample.segments.iter().map(of).sum()
}

/// Samples per second of a new journal.
fn journal_rate(folder: &Path, calls: &[Vec<Sample>]) -> f64 {
    let path = folder.join("journal.sqlite");
    let mut journal = Journal::open(&path).unwrap();
    let start = Instant::now();
    for samples in calls {
        assert_eq!(journal.put_samples(samples).unwrap(), samples.len());
    }
    let rate = (CALLS * SAMPLES) as f64 / start.elapsed().as_secs_f64();
    drop(journal);
    std::fs::remove_file(path).unwrap();
    rate
}

/// Samples per second of plain appends with sync.
fn disk_rate(folder: &Path, calls: &[Vec<Sample>]) -> f64 {
    let path = folder.join("bytes");
    let mut file = File::create(&path).unwrap();
    let start = Instant::now();
    for samples in calls {
        file.write_all(&vec![b'x'; samples.iter().map(bytes).sum()]).unwrap();
        file.sync_data().unwrap();
    }
    let rate = (CALLS * SAMPLES) as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    rate
}

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let calls: Vec<Vec<Sample>> = (0..CALLS)
        .map(|call| (call * SAMPLES..(call + 1) * SAMPLES).map(sample).collect())
        .collect();
    let (journal, disk) = in_turn(
        ROUNDS,
        || journal_rate(folder.path(), &calls),
        || disk_rate(folder.path(), &calls),
    );
    let figures = format!(
        "{journal:.0} durable samples/s of {TOKENS} tokens; plain appends reach \
            {disk:.0} samples/s"
    );
    row("journal-samples", &figures, journal / AIM.min(disk), Aim::AtLeast(1.0));
}
