//! Defaults of all rewards that run outside the coordinator.

/// Seconds per try.
pub(crate) fn timeout_seconds() -> u32 {
    15
}

/// Retries after a failed try.
pub(crate) fn retries() -> u32 {
    5
}

/// Seconds for which sampling waits for a verifier that is down.
pub(crate) fn max_outage_seconds() -> u32 {
    1800
}

/// Concurrent requests to a server.
pub(crate) fn concurrency() -> u32 {
    64
}
