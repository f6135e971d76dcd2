//! Weight sync of engines: abort → pause → update → verify → continue, independently per engine,
//! with a deadline per call. Verified are the version, and elements of the weights
//! ([`probes`]).
//!
//! An engine whose update fails is not routed to, whatever version it reports, until a later update
//! succeeds: from the newest folder, or by the next broadcast, which the learners are instructed to
//! send when the engine is reachable. An engine that misses a deadline is treated as hung.

mod deadline;
pub mod disk;
pub mod distributed;
pub mod folders;
mod later;
pub mod orphans;
mod pause;
mod phases;
pub mod probes;

use std::path::PathBuf;
use std::sync::Arc;

use rljob_crds::job::RunningCompletions;
use rljob_protocol::probe::WeightProbe;
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use self::phases::{Phase, Phases};
use crate::clock::Clock;
use crate::core::instruct::KeptGroup;
use crate::core::{Now, Run};
use crate::engines::slot::Slot;
use crate::engines::streams::Streams;
use crate::engines::{EngineError, Fleet, check_epoch};
use crate::persistence::fence::Fence;
use crate::recorder::Recorder;
use crate::run_handle::RunHandle;

/// What engines sample, which decides about their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Batches, and evaluations if no other engines do. Their weights are the newest published.
    Rollouts,
    /// Evaluations only. Their weights are those of the evaluation in progress.
    Evaluations,
}

impl Purpose {
    /// Weights that every engine should hold, with their folder, if they are on disk.
    async fn weights_wanted(self, run: &RunHandle) -> Option<(Version, PathBuf)> {
        let wanted = |run: &Run| match self {
            Self::Rollouts => {
                run.weights_wanted().map(|(version, folder)| (version, folder.to_owned()))
            }
            Self::Evaluations => run.evaluation_weights_wanted(),
        };
        run.read(wanted).await
    }
}

/// Handles that weight updates use.
pub struct WeightSync {
    pub purpose: Purpose,
    pub run: RunHandle,
    pub fleet: Arc<Fleet>,
    pub fence: Fence,
    pub recorder: Recorder,
    pub clock: Clock,
    /// Backend of the engines' process groups for broadcasts.
    pub backend: &'static str,
    /// What happens to running completions.
    pub running: RunningCompletions,
}

impl WeightSync {
    /// Whether engines keep their cached keys and values.
    fn keeps_cache(&self) -> bool {
        self.running == RunningCompletions::Keep
    }
}

/// A failed weight update.
#[derive(Debug, thiserror::Error)]
#[error("failed to update {engine} to {version}")]
pub struct SyncError {
    engine: String,
    version: Version,
    source: EngineError,
}

/// An engine during an update.
struct Target {
    engine: String,
    url: String,
    /// When the update began.
    began: Now,
    lost: CancellationToken,
    /// Streams of its process; no further ones open until the update is booked.
    streams: Streams,
    /// The version that its process reported last.
    label: Option<String>,
    /// The process group that its process is in.
    group: Option<KeptGroup>,
    /// Whether elements of its weights were never read back.
    is_unchecked: bool,
    phases: Phases,
}

impl Target {
    /// Aborts an update when the engine stops answering, before the call's deadline.
    async fn or_lost(
        &self,
        update: impl Future<Output = Result<(), EngineError>>,
    ) -> Result<(), EngineError> {
        tokio::select! {
            () = self.lost.cancelled() => {
                Err(EngineError::Aborted("the engine no longer responds".to_owned()))
            }
            result = update => result,
        }
    }
}

/// Takes an engine out of routing for an update. Returns `None` if it does not exist.
fn begin(sync: &WeightSync, engine: &str, version: Version) -> Option<Target> {
    tracing::debug!(engine, %version, "updating an engine's weights");
    sync.fleet.update(engine, |slot| {
        slot.update_begins();
        Target {
            engine: engine.to_owned(),
            url: slot.url.clone(),
            began: sync.clock.now(),
            lost: slot.lost.clone(),
            streams: slot.streams.clone(),
            label: slot.label().map(ToOwned::to_owned),
            group: slot.group.take(),
            is_unchecked: slot.was_never_checked(),
            phases: Phases::default(),
        }
    })
}

/// Checks that the engine reports `version` and, at the first update of its process, that it holds
/// the elements `probes`, and resumes it.
async fn verify_and_continue(
    sync: &WeightSync,
    target: &Target,
    version: Version,
    probes: &[WeightProbe],
) -> Result<(), EngineError> {
    let (client, url) = (&sync.fleet.client, target.url.as_str());
    let found = client.model_info(url).await?.weight_version;
    if found != version.to_string() {
        return Err(EngineError::WrongWeights { found, expected: version.to_string() });
    }
    let is_first = target.is_unchecked && !probes.is_empty();
    if is_first {
        probes::check(client, url, probes).await?;
    }
    check_epoch(&sync.fence).await?;
    client.resume(url).await?;
    if is_first {
        sync.fleet.update(&target.engine, Slot::checked);
    }
    target.phases.end(Phase::Resume, sync.clock.now());
    Ok(())
}

/// Records the result of an update. A process that must be replaced counts as hung.
async fn book(
    sync: &WeightSync,
    target: &Target,
    version: Version,
    result: Result<(), EngineError>,
) {
    let (now, engine) = (sync.clock.now(), target.engine.as_str());
    let timeline = &sync.recorder.timeline;
    timeline.add(engine, format!("update to {version}"), (target.began, now));
    for (name, times) in target.phases.spans(target.began) {
        timeline.add(engine, format!("{name} for {version}"), times);
    }
    let held = result.is_ok().then_some(version);
    let must_go = result.as_ref().is_err_and(EngineError::needs_replacement);
    sync.fleet.update(engine, |slot| {
        slot.update_ends(held, now);
        if must_go {
            slot.mark_hung(now);
        }
    });
    match result {
        Ok(()) => {
            tracing::info!(engine, %version, "updated an engine's weights");
            if sync.purpose == Purpose::Rollouts
                && let Some(issued) = sync.run.read(|run| run.publication_issued(version)).await
            {
                let seconds = target.phases.seconds(issued, target.began, now);
                sync.recorder.weights_arrived(version, seconds);
            }
        }
        Err(source) => report(sync, engine, version, source).await,
    }
}

/// Reports a failed update.
async fn report(sync: &WeightSync, engine: &str, version: Version, source: EngineError) {
    let error = SyncError { engine: engine.to_owned(), version, source };
    tracing::warn!(
        error = %crate::error_line(&error),
        "failed to update weights; the engine stays out of routing");
    let details = serde_json::json!({
        "engine": engine, "version": version, "error": crate::error_line(&error),
    });
    sync.recorder.event("EngineUpdateFailed", details).await;
}
