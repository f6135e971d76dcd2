//! Detection of hung processes of a local run, in place of a cluster's probes. Pure: time is a
//! parameter.
//!
//! A coordinator is responsive if it serves its status; supervisors and engines, if the coordinator
//! reports them so. A process that was never responsive is starting, for any length of time.

use std::collections::BTreeMap;
use std::time::Duration;

use rljob_protocol::status::{CoordinatorStatus, HUNG_SECONDS};
use tokio::time::Instant;

use super::role::Role;

/// A process that was responsive before is hung after this time without a response. An engine is
/// hung at once if the coordinator says that it has been silent for so long.
pub const PATIENCE: Duration = Duration::from_secs(HUNG_SECONDS as u64);

/// One start of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Name of the process.
    pub name: String,
    /// Number of starts, this one included.
    pub starts: u32,
}

/// Time of the last response of each instance.
#[derive(Debug, Default)]
pub struct Watchdog {
    last_response: BTreeMap<Instance, Instant>,
}

impl Watchdog {
    /// Names of hung processes. Each instance is reported once.
    pub fn hung(
        &mut self,
        running: &[(Instance, Role)],
        status: Option<&CoordinatorStatus>,
        now: Instant,
    ) -> Vec<String> {
        self.last_response.retain(|instance, _| running.iter().any(|(other, _)| other == instance));
        for (instance, role) in running {
            match responds(&instance.name, *role, status) {
                Some(true) => drop(self.last_response.insert(instance.clone(), now)),
                Some(false) => {}
                // Unknown while the coordinator is unavailable: the time does not count.
                None => drop(self.last_response.get_mut(instance).map(|at| *at = now)),
            }
        }
        let hung: Vec<Instance> = self
            .last_response
            .iter()
            .filter(|(instance, at)| {
                now.saturating_duration_since(**at) >= PATIENCE || is_stuck(&instance.name, status)
            })
            .map(|(instance, _)| instance.clone())
            .collect();
        self.last_response.retain(|instance, _| !hung.contains(instance));
        hung.into_iter().map(|instance| instance.name).collect()
    }
}

/// Whether it is an engine that the coordinator found to be hung.
fn is_stuck(name: &str, status: Option<&CoordinatorStatus>) -> bool {
    status.is_some_and(|status| {
        status.all_engines().any(|engine| engine.name == name && engine.is_hung())
    })
}

/// Whether the process responds; `None` if the coordinator is needed and unavailable.
fn responds(name: &str, role: Role, status: Option<&CoordinatorStatus>) -> Option<bool> {
    match role {
        Role::Coordinator => Some(status.is_some()),
        Role::Trainer | Role::Group => {
            let status = status?;
            let of_groups = status.groups.iter().flat_map(|group| &group.supervisors);
            let mut all = status.supervisors.iter().chain(of_groups);
            Some(all.any(|supervisor| supervisor.name == name && supervisor.alive))
        }
        Role::Engine(_) => Some(
            status?
                .all_engines()
                .any(|engine| engine.name == name && engine.silent_seconds.is_none()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::EnginePurpose;

    use super::*;
    use crate::decide::test_support::report;
    use rljob_protocol::status::{EngineCondition, EngineState, SupervisorState};

    fn all() -> Vec<(Instance, Role)> {
        let instance = |name: &str, role| (Instance { name: name.to_owned(), starts: 1 }, role);
        vec![
            instance("coordinator", Role::Coordinator),
            instance("inference-0", Role::Engine(EnginePurpose::Rollouts)),
            instance("trainer-0", Role::Trainer),
        ]
    }

    fn status(alive: bool, silent_seconds: Option<u32>) -> CoordinatorStatus {
        let supervisors = vec![SupervisorState {
            name: "trainer-0".to_owned(),
            alive,
            learners: 1,
            uid: None,
            gpu_fault: None,
        }];
        let engines = vec![EngineState {
            name: "inference-0".to_owned(),
            state: EngineCondition::Stale,
            version: None,
            silent_seconds,
            uid: None,
            unsuitable: None,
        }];
        CoordinatorStatus { supervisors, engines, ..report() }
    }

    #[test]
    fn an_unresponsive_process_is_reported_once() {
        let (responsive, silent) = (status(true, None), status(false, Some(2)));
        let none: Vec<String> = vec![];
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (case, before, after, expected) in [
            ("all respond", Some(&responsive), Some(&responsive), vec![]),
            (
                "no process responds to the coordinator",
                Some(&responsive),
                Some(&silent),
                vec!["inference-0", "trainer-0"],
            ),
            ("the coordinator hangs", Some(&responsive), None, vec!["coordinator"]),
            ("no process has responded yet", Some(&silent), Some(&silent), vec![]),
        ] {
            let mut watchdog = Watchdog::default();
            assert_eq!(watchdog.hung(&all(), before, start), none, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(19)), none, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(20)), expected, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(39)), none, "{case}");
        }
    }

    #[test]
    fn an_engine_that_the_coordinator_found_hung_is_reported_at_once() {
        let mut watchdog = Watchdog::default();
        let start = Instant::now();
        watchdog.hung(&all(), Some(&status(true, None)), start);
        let hung = watchdog.hung(&all(), Some(&status(true, Some(20))), start);
        assert_eq!(hung, ["inference-0"]);
    }

    #[test]
    fn a_restarted_process_has_unlimited_time_to_start() {
        let mut watchdog = Watchdog::default();
        let start = Instant::now();
        watchdog.hung(&all(), Some(&status(true, None)), start);
        let mut successors = all();
        successors[1].0.starts = 2;
        assert_eq!(
            watchdog.hung(&successors, Some(&status(true, Some(60))), start + PATIENCE),
            Vec::<String>::new()
        );
    }
}
