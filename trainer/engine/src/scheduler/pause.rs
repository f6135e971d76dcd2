//! Pause, continue and abort.

use std::collections::VecDeque;

use serde::Deserialize;
use tokio::sync::oneshot;

use super::Scheduler;
use super::sequence::Sequence;
use crate::generation::FinishReason;

/// Effect of a pause on running and waiting requests. Requests that arrive later are held until the
/// engine continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Finishes them with the tokens generated so far.
    #[default]
    Abort,
    /// Moves them back to the queue and frees their cache. They keep their tokens, except in
    /// deterministic mode, where they restart.
    Retract,
    /// Keeps them with their cache.
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
        for probe in self.probes.drain(..) {
            let _ = probe.send(());
        }
        self.waiting.append(&mut self.held);
    }

    /// Answers a health check; during a pause, when the engine continues.
    pub(super) fn probe(&mut self, done: oneshot::Sender<()>) {
        if self.paused {
            self.probes.retain(|probe| !probe.is_closed());
            self.probes.push(done);
        } else {
            let _ = done.send(());
        }
    }

    /// Moves running requests to the front of the queue in order.
    fn retract(&mut self) {
        self.metrics.retracted.inc_by(self.running.len() as u64);
        for mut sequence in self.running.drain(..).rev() {
            sequence.retract(self.settings.deterministic);
            self.waiting.push_front(sequence);
        }
    }

    /// Aborts the requests selected by id, including held ones.
    pub(super) fn abort(&mut self, chosen: impl Fn(&str) -> bool) {
        let held = std::mem::take(&mut self.held);
        self.held = self.abort_waiting(held, &chosen);
        self.abort_live(chosen);
    }

    /// Aborts running and waiting requests; running ones keep their tokens.
    fn abort_live(&mut self, chosen: impl Fn(&str) -> bool) {
        for index in (0..self.running.len()).rev() {
            if chosen(self.running[index].rid()) {
                self.end(index, FinishReason::Aborted);
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
            self.finish(sequence, FinishReason::AbortedWaiting);
        }
        kept
    }

    /// Aborts `rid` and every request whose id starts with it, if `rid` itself exists: SGLang's
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
