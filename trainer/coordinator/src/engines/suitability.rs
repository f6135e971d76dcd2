//! Suitability and limits of an engine, from its `/server_info`. Pure.

use rljob_protocol::sglang::{SGLANG_RELEASE, ServerInfo};

/// Maximum number of requests in flight per engine, each with a connection.
pub const MAX_REQUESTS: u32 = 2048;
/// Requests in flight of an engine that does not say how many it decodes together.
const DEFAULT_REQUESTS: u32 = 256;

/// Limits of a suitable engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests in flight, at least 1.
    pub requests: u32,
}

impl Limits {
    /// Lowered to `requests`, if that is set.
    #[must_use]
    pub fn at_most(self, requests: Option<u32>) -> Self {
        Self { requests: requests.map_or(self.requests, |most| self.requests.min(most.max(1))) }
    }
}

/// Why an engine gets no requests and no weights. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// A release whose routes and streams may differ.
    #[error(
        "it has the API of SGLang {0:?}; use SGLang {SGLANG_RELEASE} or later, such as the image \
         lmsysorg/sglang:v{SGLANG_RELEASE}"
    )]
    Release(String),
    /// A stream of `n` tokens would have `n²/2` of them.
    #[error(
        "it repeats all tokens with each new one; start it with --incremental-streaming-output"
    )]
    WholeStreams,
}

/// The limits of an engine.
///
/// # Errors
/// The engine is not suitable.
pub fn limits(info: &ServerInfo) -> Result<Limits, Unsuitable> {
    let found = release(&info.version).filter(|found| Some(*found) >= release(SGLANG_RELEASE));
    if found.is_none() {
        return Err(Unsuitable::Release(info.version.clone()));
    }
    if !info.incremental_streaming_output {
        return Err(Unsuitable::WholeStreams);
    }
    let schedulers = info.internal_states.iter();
    let requests = schedulers
        .filter_map(|state| state.max_running_requests)
        .reduce(u32::saturating_add)
        .unwrap_or(DEFAULT_REQUESTS);
    Ok(Limits { requests: requests.clamp(1, MAX_REQUESTS) })
}

/// Major, minor and patch of a version such as `0.5.12`, `0.5.12.post1` or `0.5.13rc1`.
fn release(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..end)?.parse().ok()
    });
    Some([parts.next()??, parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use rljob_protocol::sglang::{InternalState, ServerInfo};

    use super::{Limits, Unsuitable, limits};

    fn info(version: &str, requests: &[Option<u32>]) -> ServerInfo {
        let state = |requests: &Option<u32>| InternalState { max_running_requests: *requests };
        ServerInfo {
            version: version.to_owned(),
            incremental_streaming_output: true,
            internal_states: requests.iter().map(state).collect(),
        }
    }

    #[test]
    fn a_job_lowers_the_limit_of_an_engine_but_does_not_raise_it() {
        for (most, requests) in [(None, 48), (Some(32), 32), (Some(64), 48)] {
            assert_eq!(Limits { requests: 48 }.at_most(most), Limits { requests });
        }
    }

    #[test]
    fn requests_are_limited_by_what_the_schedulers_decode_together() {
        for (schedulers, requests) in [
            (&[Some(48)][..], 48),
            (&[Some(48), Some(48)], 96),
            (&[Some(4096)], 2048),
            (&[Some(u32::MAX), Some(1)], 2048),
            (&[Some(0)], 1),
            (&[None], 256),
            (&[], 256),
        ] {
            assert_eq!(limits(&info("0.5.12", schedulers)), Ok(Limits { requests }));
        }
    }

    #[test]
    fn releases_before_the_tested_one_are_unsuitable() {
        for version in ["0.5.12", "0.5.12.post1", "0.5.13rc1", "0.6.0", "1.0.0"] {
            assert!(limits(&info(version, &[])).is_ok(), "{version}");
        }
        for version in ["0.5.11", "0.5.9.post3", "0.4.99", "0.5", "0.1.0", "", "main"] {
            let expected = Err(Unsuitable::Release(version.to_owned()));
            assert_eq!(limits(&info(version, &[])), expected);
        }
        let message = Unsuitable::Release("0.5.9".to_owned()).to_string();
        let expected = "it has the API of SGLang \"0.5.9\"; use SGLang 0.5.12 or later, such as \
                        the image lmsysorg/sglang:v0.5.12";
        assert_eq!(message, expected);
    }

    #[test]
    fn an_engine_that_repeats_tokens_is_unsuitable() {
        let repeats = ServerInfo { incremental_streaming_output: false, ..info("0.5.12", &[]) };
        assert_eq!(limits(&repeats), Err(Unsuitable::WholeStreams));
    }
}
