//! Phases of an engine's update, for metrics and traces.
//!
//! ```text
//!  issued ── stage ──▶ began ── join ──▶ ── pause ──▶ ── transfer ──▶ ── resume ──▶ sampling
//!            learners           a first broadcast     receive, load      version, elements
//! ```

use parking_lot::Mutex;
use rljob_protocol::metrics::{
    SYNC_JOIN_SECONDS, SYNC_PAUSE_SECONDS, SYNC_RESUME_SECONDS, SYNC_SECONDS, SYNC_STAGE_SECONDS,
    SYNC_TRANSFER_SECONDS,
};

use crate::core::Now;

/// What an engine does in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It joins the process group of its sender.
    Join,
    /// Its requests end.
    Pause,
    /// It receives or reads the weights, and loads them.
    Transfer,
    /// It is checked, and samples again.
    Resume,
}

impl Phase {
    fn metric(self) -> &'static str {
        match self {
            Self::Join => SYNC_JOIN_SECONDS,
            Self::Pause => SYNC_PAUSE_SECONDS,
            Self::Transfer => SYNC_TRANSFER_SECONDS,
            Self::Resume => SYNC_RESUME_SECONDS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Join => "join the senders",
            Self::Pause => "pause",
            Self::Transfer => "load weights",
            Self::Resume => "check and resume",
        }
    }
}

/// The phases that ended, each with its end.
#[derive(Debug, Default)]
pub struct Phases(Mutex<Vec<(Phase, Now)>>);

impl Phases {
    /// Ends a phase, which began with the end of the one before.
    pub fn end(&self, phase: Phase, now: Now) {
        self.0.lock().push((phase, now));
    }

    /// Names and times of the phases of an update that began at `began`.
    pub fn spans(&self, began: Now) -> Vec<(&'static str, (Now, Now))> {
        self.each(began, |phase, times| (phase.name(), times))
    }

    /// Seconds of all phases of a complete update, as metrics of a step. It began at `began`, after
    /// the publication was issued at `issued`, and ended at `now`.
    pub fn seconds(&self, issued: Now, began: Now, now: Now) -> Vec<(&'static str, f64)> {
        let seconds = |(from, to): (Now, Now)| to.saturating_sub(from).as_secs_f64();
        let mut all = vec![
            (SYNC_SECONDS, seconds((issued, now))),
            (SYNC_STAGE_SECONDS, seconds((issued, began))),
        ];
        all.extend(self.each(began, |phase, times| (phase.metric(), seconds(times))));
        all
    }

    fn each<T>(&self, began: Now, of: impl Fn(Phase, (Now, Now)) -> T) -> Vec<T> {
        let mut from = began;
        let span =
            |(phase, to): &(Phase, Now)| of(*phase, (std::mem::replace(&mut from, *to), *to));
        self.0.lock().iter().map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Now, Phase, Phases};

    #[test]
    fn the_phases_of_an_update_make_up_its_time() {
        let at = Now::from_secs;
        let phases = Phases::default();
        for (phase, end) in
            [(Phase::Join, 15), (Phase::Pause, 16), (Phase::Transfer, 20), (Phase::Resume, 21)]
        {
            phases.end(phase, at(end));
        }
        assert_eq!(
            phases.seconds(at(10), at(13), at(21)),
            [
                ("syncSeconds", 11.0),
                ("syncStageSeconds", 3.0),
                ("syncJoinSeconds", 2.0),
                ("syncPauseSeconds", 1.0),
                ("syncTransferSeconds", 4.0),
                ("syncResumeSeconds", 1.0),
            ]
        );
        assert_eq!(
            phases.spans(at(13)),
            [
                ("join the senders", (at(13), at(15))),
                ("pause", (at(15), at(16))),
                ("load weights", (at(16), at(20))),
                ("check and resume", (at(20), at(21))),
            ]
        );
        assert_eq!(Phases::default().spans(at(13)), []);
    }
}
