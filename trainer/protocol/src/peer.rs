//! Protocol versions: announcement, and rejection of requests that a peer cannot serve.
//!
//! ```text
//!  client ── request,  rljob-protocol: N ──▶ server     N absent: version 1, release 0.1
//!         ◀─ response, rljob-protocol: M ──             M absent: version 1
//! ```

use serde::{Deserialize, Serialize};

/// The protocol version of this release.
///
/// - 1: release 0.1; rejects unknown fields.
/// - 2: this header; metrics named `reward/<name>`; segments and turn rewards in batches;
///   `unsupported` in the status; `uid` of engines and supervisors; `protocol` in the run
///   configuration, whose spec has the second shape of the API.
/// - 3: broadcasts in buckets, whose process groups are kept for later publications;
///   `rollout.workflow`; memory plans of learners, and their spans of a step; samples that a limit
///   ended, in batches; verifier pods; engines that only evaluate; groups of the trainer; elements
///   of published weights; faults of GPUs.
pub const PROTOCOL_VERSION: u32 = 3;

/// The protocol version that introduced buckets of broadcasts.
pub const PROTOCOL_BUCKETS: u32 = 3;

/// HTTP header of every request and response between processes of a run: the sender's
/// [`PROTOCOL_VERSION`]. Engines speak SGLang's HTTP API, without it.
pub const PROTOCOL_HEADER: &str = "rljob-protocol";

/// HTTP status of a [`ProtocolUnsupported`]: 426 Upgrade Required.
pub const STATUS_UNSUPPORTED: u16 = 426;

/// The version that a peer announced by [`PROTOCOL_HEADER`]; 1 without a readable one.
pub fn peer_version(header: Option<&[u8]>) -> u32 {
    header
        .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok())
        .filter(|version| *version >= 1)
        .unwrap_or(1)
}

/// A request that fails because one of two processes is of an older release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error(
    "{peer} speaks protocol version {announced}, and {feature} needs version {required}; \
     run it from an image of the newer release"
)]
pub struct ProtocolUnsupported {
    /// The older process, such as `supervisor sums-trainer-0`.
    pub peer: String,
    /// The version that it announced.
    pub announced: u32,
    /// The version that introduced `feature`.
    pub required: u32,
    /// What it lacks.
    pub feature: String,
}

impl ProtocolUnsupported {
    /// An error unless `announced` is at least `required`.
    ///
    /// # Errors
    /// The peer is too old.
    pub fn check(
        peer: impl Into<String>,
        announced: u32,
        required: u32,
        feature: &str,
    ) -> Result<(), Self> {
        if announced >= required {
            return Ok(());
        }
        Err(Self { peer: peer.into(), announced, required, feature: feature.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{ProtocolUnsupported, peer_version};

    #[test]
    fn a_peer_without_a_readable_header_speaks_version_1() {
        for (header, version) in [
            (None, 1),
            (Some("2"), 2),
            (Some(" 7 "), 7),
            (Some(""), 1),
            (Some("0"), 1),
            (Some("-1"), 1),
            (Some("two"), 1),
        ] {
            assert_eq!(peer_version(header.map(str::as_bytes)), version, "{header:?}");
        }
        assert_eq!(peer_version(Some(&[0xff])), 1);
    }

    #[test]
    fn an_old_peer_is_named_with_both_versions_and_the_feature() {
        let check = |announced| {
            ProtocolUnsupported::check("supervisor a", announced, 2, "the run configuration")
        };
        assert_eq!(check(2), Ok(()));
        assert_eq!(
            check(1).unwrap_err().to_string(),
            "supervisor a speaks protocol version 1, and the run configuration needs version 2; \
             run it from an image of the newer release"
        );
    }
}
