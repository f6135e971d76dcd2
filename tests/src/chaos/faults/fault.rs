//! An injectable fault.

use std::fmt;

use anyhow::Result;
use rand_chacha::ChaCha8Rng;

use crate::chaos::testbed::Testbed;

/// An injectable fault.
pub struct Fault {
    /// Faulted component.
    pub target: &'static str,
    /// Kind of fault.
    pub name: &'static str,
    /// Whether the fault may increment the job's restart count: failures of learners and faults
    /// that look like one. All others must not.
    pub may_count_restart: bool,
    /// Relation to faults that are active at the same time.
    pub(crate) relation: Relation,
    /// Share of draws, relative to 1.
    pub(crate) weight: u32,
    /// Blocks until the fault is reverted. Errors if there is no target; a `Violation` is an
    /// error of what is tested.
    pub inject: Inject,
}

/// Injects a fault and reverts it.
pub type Inject = fn(&Testbed, &mut ChaCha8Rng) -> Result<()>;

/// Relation of a fault to faults that are active at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// Overlaps any other.
    Independent,
    /// Stops what reports the state of the job: operator, API server, nodes, or all of its pods.
    Disturbing,
    /// Checks what is reported. Overlaps no disturbing fault.
    Checking,
}

impl Fault {
    pub(super) const fn new(target: &'static str, name: &'static str, inject: Inject) -> Self {
        let relation = Relation::Independent;
        Self { target, name, may_count_restart: false, relation, weight: 1, inject }
    }

    pub(super) const fn counted(self) -> Self {
        Self { may_count_restart: true, ..self }
    }

    pub(super) const fn disturbing(self) -> Self {
        Self { relation: Relation::Disturbing, ..self }
    }

    pub(super) const fn checking(self) -> Self {
        Self { relation: Relation::Checking, ..self }
    }

    pub(super) const fn weighted(self, weight: u32) -> Self {
        Self { weight, ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target, self.name)
    }
}
