//! Which weights a completion may be sampled with.

use std::fmt;

use rljob_protocol::version::Version;

/// What an engine must hold to be asked, and what its answer may be labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// These and no others.
    Exactly(Version),
    /// Of this step or a later one, whichever incarnation of the learners made them.
    Since(u32),
}

impl Weights {
    /// Whether `version` will do.
    pub fn allow(self, version: Version) -> bool {
        match self {
            Self::Exactly(wanted) => version == wanted,
            Self::Since(step) => version.step >= step,
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(version) => version.fmt(f),
            Self::Since(step) => write!(f, "step {step} or later"),
        }
    }
}
