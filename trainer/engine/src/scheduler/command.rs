//! Scheduler commands, each with a response channel, and their dispatch.

use rljob_collective::Group;
use rljob_protocol::sglang::{
    GetWeightsByName, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use tokio::sync::oneshot;

use super::{PauseMode, Scheduler};
use crate::request::{GenerateError, QueuedRequest};

/// A command with the channel of its response, which is dropped if the receiver no longer exists.
#[derive(Debug)]
pub enum Command {
    /// Runs a request; the channel of its response is in the [`QueuedRequest`].
    Generate(QueuedRequest),
    /// Scores a sequence with a classifier, also during a pause.
    Classify(Vec<i64>, oneshot::Sender<Result<f64, GenerateError>>),
    /// Stops generation and holds new requests.
    Pause(PauseMode, oneshot::Sender<()>),
    /// Runs the held requests.
    Continue(oneshot::Sender<()>),
    /// Aborts requests whose id starts with this prefix, or all.
    Abort(Option<String>, oneshot::Sender<()>),
    /// Responds while the engine is not paused.
    Probe(oneshot::Sender<()>),
    /// Clears the caches if the engine is idle; returns whether it was.
    Flush(oneshot::Sender<bool>),
    /// Loads weights from a folder.
    UpdateFromDisk(UpdateWeightsFromDisk, oneshot::Sender<WeightsAnswer>),
    /// Registers a joined weight-update group.
    AddGroup(String, Group, oneshot::Sender<WeightsAnswer>),
    /// Whether a group name is unused.
    GroupIsFree(String, oneshot::Sender<bool>),
    /// Receives broadcast weights.
    UpdateFromDistributed(UpdateWeightsFromDistributed, oneshot::Sender<WeightsAnswer>),
    /// Leaves a weight-update group.
    DestroyGroup(String, oneshot::Sender<WeightsAnswer>),
    /// Renames the version of the weights.
    RenameVersion(String, oneshot::Sender<()>),
    /// Returns the first values of a weight; `None` for an unknown name.
    ReadWeight(GetWeightsByName, oneshot::Sender<Option<serde_json::Value>>),
}

impl Scheduler {
    pub(super) fn handle(&mut self, command: Command) {
        match command {
            Command::Generate(job) => self.accept(job),
            Command::Classify(tokens, done) => {
                let _ = done.send(self.classify(&tokens));
            }
            Command::Pause(mode, done) => {
                self.pause(mode);
                let _ = done.send(());
            }
            Command::Continue(done) => {
                self.resume();
                let _ = done.send(());
            }
            Command::Abort(rid, done) => {
                match rid {
                    Some(rid) => self.abort_prefix(&rid),
                    None => self.abort(|_| true),
                }
                let _ = done.send(());
            }
            Command::Probe(done) => self.probe(done),
            Command::RenameVersion(version, done) => {
                self.commit(&version, None);
                let _ = done.send(());
            }
            Command::Flush(done) => {
                let _ = done.send(self.flush());
            }
            Command::UpdateFromDisk(update, done) => {
                let _ = done.send(self.update_from_disk(&update));
            }
            Command::AddGroup(name, group, done) => {
                let _ = done.send(self.add_group(name, group));
            }
            Command::GroupIsFree(name, done) => {
                let _ = done.send(!self.groups.contains_key(&name));
            }
            Command::UpdateFromDistributed(update, done) => {
                let _ = done.send(self.update_from_distributed(&update));
            }
            Command::DestroyGroup(name, done) => {
                let _ = done.send(self.destroy_group(&name));
            }
            Command::ReadWeight(wanted, done) => {
                let _ = done.send(self.read_weight(&wanted));
            }
        }
    }
}
