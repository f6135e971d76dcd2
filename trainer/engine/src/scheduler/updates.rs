//! Weight updates from a folder or by broadcast.
//!
//! An update needs an idle engine, or a pause with `flush_cache: false`: then the requests continue
//! with keys and values of the old weights. Cached prompts are always removed. Weights are copied
//! in place.
//!
//! The version is `default` during an update, between the buckets of a broadcast and after a failed
//! update, which keeps the engine out of routing. Invalid updates are rejected before anything
//! changes.

use std::path::Path;

use rljob_collective::Group;
use rljob_learner::model::hugging_face;
use rljob_protocol::sglang::{
    GetWeightsByName, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use tch::{Kind, Tensor};

use super::incoming::Incoming;
use super::{DEFAULT_VERSION, Scheduler};

const BUSY: &str = "Weights change only while no request is running or waiting: pause_generation \
    with mode `abort` first, or with another mode and send flush_cache false.";

/// Suffix of SGLang's message for a partial update.
const PARTIAL: &str =
    "The full weights of the ModelRunner are partially updated. Please discard the whole weights.";

impl Scheduler {
    /// Clears the caches if idle.
    pub(super) fn flush(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.drop_caches();
        }
        idle
    }

    fn may_update(&self, flush: bool) -> bool {
        self.is_idle() || self.paused && !flush
    }

    /// Clears all caches on a flush; otherwise only the cached prompts.
    fn drop_stale(&mut self, flush: bool) {
        if flush { self.drop_caches() } else { self.prompts.clear() }
    }

    fn drop_caches(&mut self) {
        self.prompts.clear();
        if let Err(error) = self.cache.clear() {
            tracing::error!(%error, "failed to free the KV cache");
        }
    }

    pub(super) fn update_from_disk(&mut self, update: &UpdateWeightsFromDisk) -> WeightsAnswer {
        if !self.may_update(update.flush_cache) {
            return failure(BUSY);
        }
        let weights = self.model.weights();
        let blocks = match hugging_face::read_tensors(
            Path::new(&update.model_path),
            weights.layout(),
            weights.kind(),
        ) {
            Ok(blocks) => blocks,
            Err(error) => {
                return failure(&format!(
                    "Failed to get weights iterator: {}. Nothing was changed.",
                    causes(&error)
                ));
            }
        };
        self.reset_version();
        self.drop_stale(update.flush_cache);
        if let Err(error) = self.model.weights().copy_from(&blocks) {
            return failure(&format!("Failed to update weights: {error}. {PARTIAL}"));
        }
        self.commit(&update.weight_version, Some(&update.model_path));
        success(&format!(
            "Succeeded to update model weights.{}",
            version_suffix(&update.weight_version)
        ))
    }

    pub(super) fn add_group(&mut self, name: String, group: Group) -> WeightsAnswer {
        if self.groups.contains_key(&name) {
            return failure(&format!(
                "Failed to initialize custom process group: group `{name}` exists; destroy it or \
                use a new name."
            ));
        }
        self.groups.insert(name, group);
        success("Succeeded to initialize custom process group.")
    }

    pub(super) fn destroy_group(&mut self, name: &str) -> WeightsAnswer {
        match self.groups.remove(name) {
            Some(_) => success("Succeeded to destroy custom process group."),
            None => failure("The group to be destroyed does not exist."),
        }
    }

    pub(super) fn update_from_distributed(
        &mut self,
        update: &UpdateWeightsFromDistributed,
    ) -> WeightsAnswer {
        if !self.may_update(update.flush_cache) {
            return failure(BUSY);
        }
        let Some(group) = self.groups.get(&update.group_name) else {
            return failure(&format!(
                "Failed to update parameter online: group `{}` does not exist; initialize it \
                first.",
                update.group_name
            ));
        };
        let incoming = match Incoming::of(update, self.model.weights()) {
            Ok(incoming) => incoming,
            Err(message) => {
                return failure(&format!(
                    "Failed to update parameter online: {message}. Nothing was changed."
                ));
            }
        };
        self.reset_version();
        let received = incoming.receive(group);
        self.drop_stale(update.flush_cache);
        if let Err(message) = received {
            // A process group is out of sync after an error and cannot be reused.
            self.groups.remove(&update.group_name);
            return failure(&format!("Failed to update parameter online: {message}. {PARTIAL}"));
        }
        let version = update.weight_version.as_deref().unwrap_or(DEFAULT_VERSION);
        self.commit(version, None);
        success(&format!("Succeeded to update parameter online.{}", version_suffix(version)))
    }

    /// Resets the version to the default.
    fn reset_version(&self) {
        self.info.send_modify(|info| DEFAULT_VERSION.clone_into(&mut info.weight_version));
    }

    pub(super) fn commit(&self, version: &str, model_path: Option<&str>) {
        tracing::info!(version, model_path, "weights updated");
        self.info.send_modify(|info| {
            version.clone_into(&mut info.weight_version);
            if let Some(path) = model_path {
                path.clone_into(&mut info.model_path);
            }
        });
    }

    /// Returns the first entries of a weight: values of a vector, rows of a matrix.
    pub(super) fn read_weight(&self, wanted: &GetWeightsByName) -> Option<serde_json::Value> {
        let view = self.model.weights().view(&wanted.name).ok()?;
        let rows = view.size()[0].min(wanted.truncate_size as i64);
        let numbers = |row: &Tensor| -> Option<Vec<f32>> {
            row.f_to_kind(Kind::Float).ok()?.f_reshape([-1]).ok()?.try_into().ok()
        };
        let cut = view.f_narrow(0, 0, rows).ok()?;
        if view.dim() == 1 {
            return serde_json::to_value(numbers(&cut)?).ok();
        }
        let matrix: Option<Vec<Vec<f32>>> =
            (0..rows).map(|row| numbers(&cut.f_get(row).ok()?)).collect();
        serde_json::to_value(matrix?).ok()
    }
}

/// Suffix of SGLang's message if the update has a version.
fn version_suffix(version: &str) -> String {
    if version == DEFAULT_VERSION {
        String::new()
    } else {
        format!(" Weight version updated to {version}.")
    }
}

/// An error and its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn success(message: &str) -> WeightsAnswer {
    WeightsAnswer { success: true, message: message.to_owned() }
}

fn failure(message: &str) -> WeightsAnswer {
    tracing::warn!("{message}");
    WeightsAnswer { success: false, message: message.to_owned() }
}
