//! Registry of supervisors and their newest reports.

use std::collections::BTreeMap;

use rljob_crds::names::{EXIT_LEARNER_INPUT, EXIT_LEARNER_PEER};
use rljob_protocol::desired::SupervisorIdentity;
use rljob_protocol::supervisor::{LearnerState, SupervisorReport};

use super::record::{Member, Now};

/// Silence after which a supervisor counts as lost.
pub const SILENCE: Now = Now::from_secs(10);
/// Time for members of a running group to find a coordinator that has just started.
pub const GRACE: Now = Now::from_secs(60);
/// A silent supervisor that belongs to no group is forgotten after this time.
const FORGET: Now = Now::from_secs(600);

/// Newest report of each supervisor.
#[derive(Clone, Debug, Default)]
pub struct Supervisors {
    seen: BTreeMap<String, Seen>,
    /// UIDs of the existing trainer pods by name, as the operator lists them.
    pods: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Seen {
    report: SupervisorReport,
    at: Now,
}

/// State of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Reports, with this number of running learners.
    Alive {
        /// Running learners.
        running: u32,
    },
    /// Silent for less than the limit.
    Quiet,
    /// Silent for longer, or replaced: its learners do not exist any more.
    Lost,
}

impl Supervisors {
    /// Takes the operator's list of existing trainer pods.
    pub fn set_pods(&mut self, pods: &[SupervisorIdentity]) {
        self.pods = pods.iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
    }

    /// Stores a report. `known` is the group member of this name, `since` the coordinator's start.
    /// Returns false if the name belongs to another process: of two processes, that of the listed
    /// pod owns the name while it reports, and otherwise the later one. An old process never
    /// replaces its successor, in whichever order their reports arrive, even if its container is
    /// restarted after its pod was deleted. An unlisted pod is accepted where there is no other:
    /// the list is outdated while the operator is down.
    pub fn report(
        &mut self,
        name: &str,
        report: SupervisorReport,
        known: Option<&Member>,
        since: Now,
        now: Now,
    ) -> bool {
        let holder = match self.seen.get(name) {
            Some(Seen { report, at }) => {
                Some((&report.instance, &report.uid, report.started_at, at.saturating_add(SILENCE)))
            }
            None => known.map(|member| {
                (&member.instance, &member.uid, member.started_at, since.saturating_add(GRACE))
            }),
        };
        let is_listed = |uid: &Option<String>| uid.is_some() && uid.as_ref() == self.pods.get(name);
        let is_its_name = holder.is_none_or(|(instance, uid, started_at, until)| {
            let replaces = match (is_listed(&report.uid), is_listed(uid)) {
                (true, false) => true,
                (false, true) => false,
                _ => report.started_at > started_at,
            };
            *instance == report.instance || replaces || now > until
        });
        if is_its_name {
            self.seen.insert(name.to_owned(), Seen { report, at: now });
        }
        is_its_name
    }

    /// Removes supervisors that stopped reporting.
    pub fn forget(&mut self, now: Now) {
        self.seen.retain(|_, seen| now.saturating_sub(seen.at) < FORGET);
    }

    /// Extends all deadlines by a time in which the coordinator processed no reports.
    pub fn extend_deadlines(&mut self, time: Now) {
        self.seen.values_mut().for_each(|seen| seen.at = seen.at.saturating_add(time));
    }

    /// State of a member. `since` is the coordinator's start.
    pub fn standing(&self, member: &Member, since: Now, now: Now) -> Standing {
        match self.seen.get(&member.name) {
            None if now.saturating_sub(since) > GRACE => Standing::Lost,
            None => Standing::Quiet,
            Some(seen)
                if seen.report.instance != member.instance
                    || now.saturating_sub(seen.at) > SILENCE =>
            {
                Standing::Lost
            }
            Some(seen) => Standing::Alive { running: running(&seen.report) },
        }
    }

    /// Newest report.
    pub fn get(&self, name: &str) -> Option<&SupervisorReport> {
        self.seen.get(name).map(|seen| &seen.report)
    }

    /// Name, liveness and report of each supervisor, ordered by name with numbers by value.
    pub fn all(&self, now: Now) -> Vec<(&str, bool, &SupervisorReport)> {
        let mut all: Vec<_> = self
            .seen
            .iter()
            .map(|(name, seen)| {
                (name.as_str(), now.saturating_sub(seen.at) <= SILENCE, &seen.report)
            })
            .collect();
        all.sort_by_key(|(name, ..)| ordinal(name));
        all
    }
}

/// Running learners of a report.
pub fn running(report: &SupervisorReport) -> u32 {
    report.learners.iter().filter(|learner| matches!(learner, LearnerState::Running(_))).count()
        as u32
}

/// Failed learner of a report that is most likely the cause: first one with invalid input, then one
/// that was killed by a signal, then one that lost its peer.
pub fn failed(report: &SupervisorReport) -> Option<(i32, &str)> {
    let exits = report.learners.iter().filter_map(|learner| match learner {
        LearnerState::Exited { code, log_tail } if *code != 0 => Some((*code, log_tail.as_str())),
        _ => None,
    });
    exits.min_by_key(|(code, _)| {
        (*code != EXIT_LEARNER_INPUT, *code == EXIT_LEARNER_PEER, *code < 128)
    })
}

/// Compares names with numbers by value: `trainer-10` follows `trainer-9`.
fn ordinal(name: &str) -> (&str, u64, &str) {
    match name.rsplit_once('-').and_then(|(prefix, number)| Some((prefix, number.parse().ok()?))) {
        Some((prefix, number)) => (prefix, number, name),
        None => (name, 0, name),
    }
}
