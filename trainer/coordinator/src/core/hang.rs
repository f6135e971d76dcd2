//! Hang detection: stopped, deadlocked or stuck learners, found from their supervisors' reports.
//!
//! A stopped process sends no heartbeat. A stuck process still sends heartbeats; since ranks wait
//! for each other in every step, it is detected when no rank progresses.

use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::{HeartbeatAge, LearnerState};

use super::learner_group::LearnerGroup;
use super::record::Layout;
use super::supervisors::SILENCE;

/// Reason of failures of hung learners.
pub const LEARNER_HUNG: &str = "LearnerHung";

impl LearnerGroup {
    /// Failure of the learner of an attempt that hangs. All of them do without progress for
    /// `timeout` seconds.
    pub(super) fn hung(
        &self,
        layout: &Layout,
        attempt: u32,
        timeout: u32,
    ) -> Option<LearnerFailure> {
        let heartbeats = self.heartbeats(layout, attempt);
        let silent = heartbeats.iter().find(|(_, age)| {
            age.beat_seconds.is_some_and(|seconds| u64::from(seconds) > SILENCE.as_secs())
        });
        if let Some((name, age)) = silent {
            let seconds = age.beat_seconds.unwrap_or_default();
            return Some(failure(
                name,
                format!(
                    "a learner of {name} sent no heartbeat for {seconds} s: the process or its \
                        node is stopped"
                ),
            ));
        }
        let whole = heartbeats.len() == layout.world_size as usize;
        if !whole || heartbeats.iter().any(|(_, age)| age.progress_seconds <= timeout) {
            return None;
        }
        // The first to stop is the one that the others wait for.
        let (name, age) = heartbeats.iter().max_by_key(|(_, age)| age.progress_seconds)?;
        let seconds = age.progress_seconds;
        Some(failure(
            name,
            format!(
                "no learner made progress for {timeout} s; a learner of {name} has made none for \
                    {seconds} s: a collective or a file system blocks"
            ),
        ))
    }

    /// Running learners with the names of their supervisors.
    fn heartbeats<'a>(&'a self, layout: &'a Layout, attempt: u32) -> Vec<(&'a str, HeartbeatAge)> {
        let members = layout
            .members
            .iter()
            .filter_map(|member| Some((member.name.as_str(), self.supervisors.get(&member.name)?)));
        let current = members.filter(|(_, report)| report.attempt == Some(attempt));
        let running = |name, learner: &LearnerState| match learner {
            LearnerState::Running(age) => Some((name, *age)),
            LearnerState::Exited { .. } => None,
        };
        current
            .flat_map(|(name, report)| {
                report.learners.iter().filter_map(move |learner| running(name, learner))
            })
            .collect()
    }
}

fn failure(supervisor: &str, message: String) -> LearnerFailure {
    LearnerFailure {
        reason: LEARNER_HUNG.to_owned(),
        message,
        supervisor: Some(supervisor.to_owned()),
        exit_code: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, exited, report, running, started, tell};
    use super::*;
    use rljob_protocol::supervisor::{Order, SupervisorReport};

    fn heartbeat(
        instance: &str,
        beat_seconds: Option<u32>,
        progress_seconds: u32,
    ) -> SupervisorReport {
        report(
            instance,
            Some(0),
            vec![LearnerState::Running(HeartbeatAge { beat_seconds, progress_seconds })],
        )
    }

    #[test]
    fn a_hang_is_detected_by_missing_heartbeats_or_missing_progress() {
        let alone = |name: &str, seconds: u32| {
            Some(format!(
                "a learner of {name} sent no heartbeat for {seconds} s: the process or its node is \
                    stopped"
            ))
        };
        let longest = "no learner made progress for 600 s; a learner of t-1 has made none for 700 \
            s: a collective or a file system blocks"
            .to_owned();
        for (case, first, second, expected) in [
            ("both work", (Some(0), 3), (Some(1), 5), None),
            ("one is being loaded, and its libraries take long", (None, 200), (Some(0), 2), None),
            ("one is stopped", (Some(11), 11), (Some(0), 11), alone("t-0", 11)),
            ("one waits for the other, which works", (Some(0), 700), (Some(0), 600), None),
            ("no rank progresses", (Some(0), 690), (Some(0), 700), Some(longest)),
        ] {
            let mut run = started();
            tell(&mut run, "t-0", heartbeat("a", first.0, first.1), at(2));
            tell(&mut run, "t-1", heartbeat("b", second.0, second.1), at(2));
            let stage = run.record().trainer.stage.clone();
            let found = if let super::super::Stage::Stopping { failure, .. } = stage {
                failure.map(|failure| failure.message)
            } else {
                None
            };
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn a_learner_that_hangs_is_killed_with_its_group_and_counted() {
        let mut run = started();
        assert_eq!(tell(&mut run, "t-0", heartbeat("a", Some(11), 11), at(2)), Order::Stop);
        assert_eq!(tell(&mut run, "t-1", running("b", 0), at(2)), Order::Stop);
        tell(&mut run, "t-0", exited("a", 0, 137), at(3));
        tell(&mut run, "t-1", exited("b", 0, 137), at(3));
        let counted =
            run.record().trainer.last_failure.as_ref().map(|failure| failure.reason.as_str());
        assert_eq!(
            (run.record().trainer.attempt, run.record().trainer.restarts, counted),
            (1, 1, Some(LEARNER_HUNG))
        );
    }
}
