//! Engines of a job whose models no step changes: those of a reward model and of a teacher.

use std::sync::Arc;

use rljob_crds::{EnginePurpose, RLJobSpec};

use crate::clock::Clock;
use crate::engines::client::EngineClient;
use crate::engines::fleet::Fleet;

/// Their fleets; none of models that the job does not have, and in checks, which score nothing.
#[derive(Clone, Default)]
pub struct FixedFleets {
    /// Engines that serve the reward model.
    pub reward: Option<Arc<Fleet>>,
    /// Engines that serve the teacher.
    pub teacher: Option<Arc<Fleet>>,
}

impl FixedFleets {
    /// The fleets of a job, whose engines have the keys and the certificate of `client`.
    pub fn new(spec: &RLJobSpec, client: &EngineClient, clock: Clock) -> Self {
        let of = |purpose| {
            let engines = spec.engines(purpose)?;
            Some(Arc::new(Fleet::with_fixed_weights(engines, client.separate(), clock)))
        };
        Self { reward: of(EnginePurpose::Reward), teacher: of(EnginePurpose::Teacher) }
    }

    /// The fleets that the job has.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Fleet>> {
        self.reward.iter().chain(&self.teacher)
    }
}
