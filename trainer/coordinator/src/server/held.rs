//! Requests for instructions, which are held while no action is due.

use std::time::Duration;

use tokio::sync::watch;

use crate::coordinator::Coordinator;
use crate::core::Now;

/// Time for which a request is held. An instruction is progress of a waiting learner, which is
/// killed after `hangTimeoutSeconds` without any.
const HOLD: Duration = Duration::from_secs(4);
/// Interval at which an instruction is computed again, since it may depend on time alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that waits for changes of the run and of engines.
pub struct HeldRequest {
    asked: Now,
    run_changes: watch::Receiver<()>,
    fleet_changes: watch::Receiver<()>,
}

impl HeldRequest {
    /// A request that arrives now.
    pub fn new(coordinator: &Coordinator) -> Self {
        Self {
            asked: coordinator.clock.now(),
            run_changes: coordinator.run.changes(),
            fleet_changes: coordinator.fleet.changes(),
        }
    }

    /// Called before an instruction is computed: later changes end the next [`Self::wait`].
    pub fn observe(&mut self) {
        self.run_changes.borrow_and_update();
        self.fleet_changes.borrow_and_update();
    }

    /// Waits for a change. Returns false if the request must be answered.
    pub async fn wait(&mut self, coordinator: &Coordinator) -> bool {
        let is_over = coordinator.clock.now().saturating_sub(self.asked) >= HOLD
            || coordinator.stop.is_cancelled();
        if is_over {
            return false;
        }
        tokio::select! {
            () = coordinator.stop.cancelled() => {}
            _ = self.run_changes.changed() => {}
            _ = self.fleet_changes.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::HOLD;

    #[test]
    fn a_request_is_held_for_less_than_half_of_the_smallest_hang_timeout() {
        let crd = serde_json::to_value(rljob_crds::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let policy = &schema["properties"]["failurePolicy"]["properties"];
        let smallest = policy["hangTimeoutSeconds"]["minimum"].as_f64().unwrap();
        assert!(HOLD.as_secs_f64() < smallest / 2.0, "{HOLD:?} beside {smallest} s");
    }
}
