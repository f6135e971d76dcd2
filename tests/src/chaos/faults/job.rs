//! Changes of the job by its user.

use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::fault::Fault;
use crate::chaos::testbed::{Testbed, between};
use crate::process::wait_until;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("job", "suspended and resumed", suspended).disturbing(),
    Fault::new("job", "scaled", scaled),
];

/// Suspends the job and resumes it during or after the drain.
fn suspended(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    testbed.patch(&json!({"suspend": true}))?;
    std::thread::sleep(between(random, 0.0, 10.0));
    wait_until("the job to be resumed", Duration::from_secs(60), || {
        testbed.patch(&json!({"suspend": false})).map(|()| true)
    })
}

fn scaled(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    testbed.patch(&json!({"inference": {"replicas": random.random_range(1..=3)}}))
}
