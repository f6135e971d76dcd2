//! What the scheduler can be asked, each with the channel of its answer, and the dispatch.

use rljob_collective::Group;
use rljob_protocol::sglang::{
    GetWeightsByName, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use tokio::sync::oneshot;

use super::{PauseMode, Scheduler};
use crate::request::Job;

/// A command. An answer nobody waits for is dropped.
#[derive(Debug)]
pub enum Command {
    /// Run a request; its answer goes its own way.
    Generate(Job),
    /// Stop generating and hold new requests.
    Pause(PauseMode, oneshot::Sender<()>),
    /// Run the held requests.
    Continue(oneshot::Sender<()>),
    /// End requests: those whose id begins with this one, or all.
    Abort(Option<String>, oneshot::Sender<()>),
    /// Drop cached prompts; whether the engine was idle, without which nothing is dropped.
    Flush(oneshot::Sender<bool>),
    /// Load a folder's weights.
    UpdateFromDisk(UpdateWeightsFromDisk, oneshot::Sender<WeightsAnswer>),
    /// Keep a joined weight-update group under its name.
    AddGroup(String, Group, oneshot::Sender<WeightsAnswer>),
    /// Whether a group name is free.
    GroupIsFree(String, oneshot::Sender<bool>),
    /// Receive weights through a group.
    UpdateFromDistributed(UpdateWeightsFromDistributed, oneshot::Sender<WeightsAnswer>),
    /// Leave a group.
    DestroyGroup(String, oneshot::Sender<WeightsAnswer>),
    /// The first numbers of a weight; none if there is no such weight.
    ReadWeight(GetWeightsByName, oneshot::Sender<Option<serde_json::Value>>),
}

impl Scheduler {
    pub(super) fn handle(&mut self, command: Command) {
        // A receiver that is gone has no use for the answer.
        match command {
            Command::Generate(job) => self.accept(job),
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
