//! Pause, continue and abort: what becomes of requests when somebody else wants the engine.

use std::collections::VecDeque;

use serde::Deserialize;

use super::Scheduler;
use super::sequence::Sequence;
use crate::answer::Finish;

/// What a pause does with requests that run or wait. Those that come later are held until the
/// engine goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They are answered at once, with the tokens they have.
    #[default]
    Abort,
    /// They go back to the queue and give their cache up; they keep their tokens, but in
    /// deterministic mode, where they start anew.
    Retract,
    /// They stay as they are, cache and all.
    InPlace,
}

impl Scheduler {
    pub(super) fn pause(&mut self, mode: PauseMode) {
        self.paused = true;
        match mode {
            PauseMode::Abort => self.abort_live(|_| true),
            PauseMode::Retract => self.retract(),
            PauseMode::InPlace => {}
        }
    }

    pub(super) fn resume(&mut self) {
        self.paused = false;
        self.waiting.append(&mut self.held);
    }

    /// Running requests go to the front of the queue, in the order they have.
    fn retract(&mut self) {
        self.metrics.retracted.inc_by(self.running.len() as u64);
        for mut sequence in self.running.drain(..).rev() {
            sequence.retract(self.settings.deterministic);
            self.waiting.push_front(sequence);
        }
    }

    /// Ends the requests whose id is chosen, held ones too.
    pub(super) fn abort(&mut self, chosen: impl Fn(&str) -> bool) {
        let held = std::mem::take(&mut self.held);
        self.held = self.abort_waiting(held, &chosen);
        self.abort_live(chosen);
    }

    /// Ends those that run or wait; running ones keep their tokens.
    fn abort_live(&mut self, chosen: impl Fn(&str) -> bool) {
        for index in (0..self.running.len()).rev() {
            if chosen(self.running[index].rid()) {
                self.end(index, Finish::Aborted);
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = self.abort_waiting(waiting, &chosen);
    }

    fn abort_waiting(
        &self,
        queue: VecDeque<Sequence>,
        chosen: &impl Fn(&str) -> bool,
    ) -> VecDeque<Sequence> {
        let (ended, kept): (VecDeque<Sequence>, VecDeque<Sequence>) =
            queue.into_iter().partition(|sequence| chosen(sequence.rid()));
        for sequence in ended {
            self.answer(sequence, Finish::AbortedWaiting);
        }
        kept
    }

    /// Ends `rid` and every request whose id begins with it, if `rid` itself is live: SGLang's
    /// rule.
    pub(super) fn abort_prefix(&mut self, rid: &str) {
        let live = self
            .running
            .iter()
            .chain(&self.waiting)
            .chain(&self.held)
            .any(|sequence| sequence.rid() == rid);
        if live {
            self.abort(|id| id.starts_with(rid));
        }
    }
}
