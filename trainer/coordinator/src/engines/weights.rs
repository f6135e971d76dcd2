//! Weight requirement of a request.

use std::fmt;

use rljob_protocol::version::Version;

/// Weights that an engine must have, and that its response must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// This version only.
    Exactly(Version),
    /// This step or a later one, from any attempt.
    Since(u32),
}

impl Weights {
    /// Whether `version` satisfies the requirement.
    pub fn allow(self, version: Version) -> bool {
        match self {
            Self::Exactly(required) => version == required,
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
