//! Gauge of the calls of programs in verifier pods. It has no values in jobs without such pods.

use prometheus::{IntGaugeVec, Opts, Registry};
use rljob_protocol::status::VerifierLoad;

use super::register::register;

/// Calls by state.
#[derive(Clone, Debug)]
pub struct VerifierCalls(IntGaugeVec);

impl VerifierCalls {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let help = "Calls of programs in verifier pods that are `running`, or `waiting` for a \
                    process.";
        let options = Opts::new("rljob_verifier_calls", help);
        Ok(Self(register(registry, IntGaugeVec::new(options, &["state"])?)?))
    }

    pub fn set(&self, load: VerifierLoad) {
        for (state, calls) in [("running", load.running), ("waiting", load.waiting)] {
            self.0.with_label_values(&[state]).set(calls.into());
        }
    }
}
