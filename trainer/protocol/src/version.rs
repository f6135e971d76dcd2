//! Version of weights, and name of the checkpoint with these weights: (step, attempt).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Weights after `step` steps, computed by learner group `attempt`. Formatted as
/// `step-12.attempt-0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    /// Completed steps.
    pub step: u32,
    /// Number of the learner group.
    pub attempt: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{}.attempt-{}", self.step, self.attempt)
    }
}

/// The text is not `step-N.attempt-K`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a version of the form step-N.attempt-K")]
pub struct ParseVersionError(String);

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (step, attempt) = text.strip_prefix("step-")?.split_once(".attempt-")?;
            Some(Self { step: step.parse().ok()?, attempt: attempt.parse().ok()? })
        };
        parse()
            .filter(|version| version.to_string() == text)
            .ok_or_else(|| ParseVersionError(text.to_owned()))
    }
}

impl TryFrom<String> for Version {
    type Error = ParseVersionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn a_version_survives_its_own_text_and_nothing_else_parses() {
        let version = Version { step: 12, attempt: 3 };
        assert_eq!(version.to_string().parse(), Ok(version));
        for bad in [
            "",
            "step-1",
            "step-01.attempt-0",
            "step-+1.attempt-0",
            "default",
            "step-1.attempt-2.x",
        ] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }
}
