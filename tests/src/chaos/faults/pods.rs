//! Deletion and eviction of the job's pods.

use anyhow::Result;
use rand_chacha::ChaCha8Rng;

use super::fault::Fault;
use crate::chaos::testbed::Testbed;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("engine pod", "deleted", |testbed, random| deleted(testbed, "inference", 5, random)),
    Fault::new("engine pod", "force-deleted", |testbed, random| {
        deleted(testbed, "inference", 0, random)
    }),
    Fault::new("engine pod", "evicted", |testbed, random| evicted(testbed, "inference", random)),
    Fault::new("coordinator pod", "deleted", |testbed, random| {
        deleted(testbed, "coordinator", 5, random)
    }),
    Fault::new("coordinator pod", "force-deleted", |testbed, random| {
        deleted(testbed, "coordinator", 0, random)
    }),
    Fault::new("coordinator pod", "evicted", |testbed, random| {
        evicted(testbed, "coordinator", random)
    }),
    Fault::new("trainer pod", "deleted", |testbed, random| deleted(testbed, "trainer", 5, random)),
    Fault::new("trainer pod", "force-deleted", |testbed, random| {
        deleted(testbed, "trainer", 0, random)
    }),
    Fault::new("trainer pod", "evicted", |testbed, random| evicted(testbed, "trainer", random)),
];

pub(super) fn deleted(
    testbed: &Testbed,
    role: &str,
    grace_seconds: u32,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    testbed.delete_pod(&testbed.pod(role, random)?, grace_seconds)
}

pub(super) fn evicted(testbed: &Testbed, role: &str, random: &mut ChaCha8Rng) -> Result<()> {
    testbed.evict(&testbed.pod(role, random)?)
}
