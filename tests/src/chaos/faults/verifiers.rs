//! Faults of verifier pods: of the pods, their runners and bridges. Verdicts stay the same.

use super::fault::Fault;
use super::pods::{deleted, evicted};
use super::processes::{cut_off, killed, stopped};

/// Substrings of command lines of the containers of a verifier pod.
const RUNNER: &str = "/rljob-reward-runner serve";
const BRIDGE: &str = "/rljob-reward-runner bridge";
const ROLE: &str = "verifier";

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("verifier pod", "deleted", |testbed, random| deleted(testbed, ROLE, 5, random)),
    Fault::new("verifier pod", "force-deleted", |testbed, random| {
        deleted(testbed, ROLE, 0, random)
    }),
    Fault::new("verifier pod", "evicted", |testbed, random| evicted(testbed, ROLE, random)),
    Fault::new("verifier pod", "cut off", |testbed, random| cut_off(testbed, BRIDGE, random)),
    Fault::new("verifier pod", "bridge killed", |testbed, random| killed(testbed, BRIDGE, random)),
    Fault::new("verifier pod", "bridge stopped", |testbed, random| {
        stopped(testbed, BRIDGE, random)
    }),
    Fault::new("verifier pod", "runner killed", |testbed, random| killed(testbed, RUNNER, random)),
    Fault::new("verifier pod", "runner stopped", |testbed, random| {
        stopped(testbed, RUNNER, random)
    }),
];
