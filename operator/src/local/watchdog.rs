//! Which processes of a local run hang, as probes and the operator find it in a cluster. Pure: time
//! is a parameter.
//!
//! A coordinator hangs if it gives no status; supervisors and engines if the coordinator does not
//! hear them. Who was never heard is starting, however long that takes.

use std::collections::BTreeMap;
use std::time::Duration;

use rljob_protocol::status::CoordinatorStatus;
use tokio::time::Instant;

use super::commands::Role;

/// A process that was heard before and is not heard for so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched {
    /// Its name.
    pub name: String,
    /// How often it was started: a successor is another one.
    pub starts: u32,
}

/// When each process was heard last.
#[derive(Debug, Default)]
pub struct Watchdog {
    heard: BTreeMap<Watched, Instant>,
}

impl Watchdog {
    /// Names of those that hang. Each is told once; another start is watched anew.
    pub fn hung(
        &mut self,
        running: &[(Watched, Role)],
        status: Option<&CoordinatorStatus>,
        now: Instant,
    ) -> Vec<String> {
        self.heard.retain(|watched, _| running.iter().any(|(other, _)| other == watched));
        for (watched, role) in running {
            match is_heard(&watched.name, *role, status) {
                Some(true) => drop(self.heard.insert(watched.clone(), now)),
                Some(false) => {}
                // A coordinator that is away hears nobody, and nobody is blamed for it.
                None => drop(self.heard.get_mut(watched).map(|at| *at = now)),
            }
        }
        let hung: Vec<Watched> = self
            .heard
            .iter()
            .filter(|(_, at)| now.saturating_duration_since(**at) >= PATIENCE)
            .map(|(watched, _)| watched.clone())
            .collect();
        self.heard.retain(|watched, _| !hung.contains(watched));
        hung.into_iter().map(|watched| watched.name).collect()
    }
}

/// None if nobody can tell.
fn is_heard(name: &str, role: Role, status: Option<&CoordinatorStatus>) -> Option<bool> {
    match role {
        Role::Coordinator => Some(status.is_some()),
        Role::Trainer => Some(
            status?
                .supervisors
                .iter()
                .any(|supervisor| supervisor.name == name && supervisor.alive),
        ),
        Role::Inference => Some(
            status?
                .engines
                .iter()
                .any(|engine| engine.name == name && engine.silent_seconds.is_none()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::report;
    use rljob_protocol::status::{EngineCondition, EngineState, SupervisorState};

    fn all() -> Vec<(Watched, Role)> {
        let watched = |name: &str, role| (Watched { name: name.to_owned(), starts: 1 }, role);
        vec![
            watched("coordinator", Role::Coordinator),
            watched("inference-0", Role::Inference),
            watched("trainer-0", Role::Trainer),
        ]
    }

    fn status(alive: bool, silent_seconds: Option<u32>) -> CoordinatorStatus {
        let supervisors =
            vec![SupervisorState { name: "trainer-0".to_owned(), alive, learners: 1 }];
        let engines = vec![EngineState {
            name: "inference-0".to_owned(),
            state: EngineCondition::Stale,
            version: None,
            silent_seconds,
        }];
        CoordinatorStatus { supervisors, engines, ..report() }
    }

    #[test]
    fn who_was_heard_and_is_not_any_more_hangs_and_is_told_once() {
        let (heard, nobody) = (status(true, None), status(false, Some(20)));
        let none: Vec<String> = vec![];
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (case, before, after, expected) in [
            ("all is well", Some(&heard), Some(&heard), vec![]),
            (
                "the coordinator hears nobody",
                Some(&heard),
                Some(&nobody),
                vec!["inference-0", "trainer-0"],
            ),
            ("the coordinator hangs", Some(&heard), None, vec!["coordinator"]),
            ("nobody has been heard yet", Some(&nobody), Some(&nobody), vec![]),
        ] {
            let mut watchdog = Watchdog::default();
            assert_eq!(watchdog.hung(&all(), before, start), none, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(19)), none, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(20)), expected, "{case}");
            assert_eq!(watchdog.hung(&all(), after, at(39)), none, "{case}");
        }
    }

    #[test]
    fn a_successor_is_given_the_time_that_it_needs_to_start() {
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
