//! Supervisors and learners of older releases that this run rejected, for the run's status.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rljob_protocol::peer::ProtocolUnsupported;

use crate::core::Now;

/// Time for which a rejection is reported. Peers repeat their requests within seconds.
const REPORTED: Duration = Duration::from_secs(15);

/// The newest rejection. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RejectedPeers(Arc<Mutex<Option<(Now, ProtocolUnsupported)>>>);

impl RejectedPeers {
    /// Records a rejection.
    pub fn record(&self, error: ProtocolUnsupported, now: Now) {
        *self.0.lock() = Some((now, error));
    }

    /// The newest rejection, while it is recent.
    pub fn recent(&self, now: Now) -> Option<ProtocolUnsupported> {
        let newest = self.0.lock();
        let (at, error) = newest.as_ref()?;
        (now.saturating_sub(*at) < REPORTED).then(|| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_is_reported_for_some_seconds() {
        let peers = RejectedPeers::default();
        assert_eq!(peers.recent(Duration::ZERO), None);
        let error = ProtocolUnsupported::check("learner", 1, 2, "the run configuration");
        let error = error.unwrap_err();
        peers.record(error.clone(), Duration::from_secs(5));
        assert_eq!(peers.recent(Duration::from_secs(19)), Some(error));
        assert_eq!(peers.recent(Duration::from_secs(20)), None);
    }
}
