//! Rollback of a run that is not active to one of its checkpoints: the steps after it are
//! discarded, and the run samples and trains them again. `rljob checkpoints restore` rolls a local
//! run back, `spec.rollbackTo` a run that starts.
//!
//! ```text
//!  exports ─▶ checkpoints, newest first ─▶ JSONL, TensorBoard ─▶ journal (one transaction)
//!    ─▶ final export
//! ```
//! A rollback that was interrupted is repeated. Before the journal has changed, the run would
//! replay the discarded steps from it; after that, the run samples them again.
//!
//! The caller holds the lock of the run directory or has claimed it, and no other process of the
//! run exists.

use std::fmt;

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use rljob_crds::RunConfig;
use rljob_crds::names::EXPORT_DIR;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use serde_json::{Value, json};

use crate::core::{Record, record};
use crate::files;
use crate::persistence::fence::Fence;
use crate::persistence::journal::{Event, Journal, Later};
use crate::persistence::{checkpoints, exports};
use crate::tracking::{mlflow, opentelemetry, tensorboard};

/// Kind of the event in the journal.
const EVENT: &str = "RolledBack";
/// Key in the journal of the newest `spec.rollbackTo` that was done.
const KEY: &str = "rollbackTo";

/// What a rollback discards.
struct Discarded {
    /// The checkpoint from which the run continues.
    version: Version,
    later: Later,
    checkpoints: Vec<Version>,
    /// Folders of intermediate exports in the run store.
    exports: Vec<String>,
    /// Whether the final export is of a later step.
    is_final_later: bool,
}

/// Rolls a run back to its newest complete checkpoint of `step`; with `is_dry`, changes nothing.
/// Returns what is discarded, one kind per line; empty if nothing is. Blocks.
///
/// # Errors
/// There is no such checkpoint, its files do not match its manifest, the run cannot be rolled back,
/// or a file of it cannot be read or removed.
pub fn roll_back(config: &RunConfig, step: u32, is_dry: bool) -> anyhow::Result<String> {
    let name = format!("{}/{}", config.namespace, config.name);
    ensure!(
        config.bucket.is_none(),
        "{name} is in a bucket, whose runs cannot be restored in place: start another job with \
         restoreFrom.rljob"
    );
    let run_store = RunStore::Folder(config.run_directory.clone());
    let fence = Fence::of_stopped_run(&config.run_directory)?.with_context(|| {
        format!("{name} has no journal, or its last start was interrupted: run and stop it first")
    })?;
    let mut journal = Journal::open(&fence.journal())?;
    let discarded = Discarded::find(&run_store, &journal, step)?;
    let text = discarded.to_string();
    if !is_dry && !text.is_empty() {
        discarded
            .apply(&run_store, &fence, &mut journal)
            .context("the restore is incomplete: repeat it")?;
    }
    Ok(text)
}

/// Does the rollback of `spec.rollbackTo`, unless the journal records that it was done. A run that
/// has not begun has nothing to discard. Blocks.
///
/// # Errors
/// There is no such checkpoint, its files do not match its manifest, the run cannot be rolled back,
/// or a file of it cannot be read or removed. The journal does not record the request then.
pub(crate) fn requested(
    config: &RunConfig,
    run_store: &RunStore,
    fence: &Fence,
    journal: &mut Journal,
) -> anyhow::Result<()> {
    let Some(target) = &config.spec.rollback_to else { return Ok(()) };
    let request = serde_json::to_value(target)?;
    if journal.get_state(KEY)?.as_ref() == Some(&request) {
        return Ok(());
    }
    let has_begun = journal.newest_batch()?.0 > 0 || !checkpoints::complete(run_store)?.is_empty();
    if has_begun {
        let step = target.step;
        let failed = || {
            format!(
                "failed to roll back to step {step}: to continue the run, suspend it, then change \
                 or remove spec.rollbackTo"
            )
        };
        let discarded = Discarded::find(run_store, journal, step).with_context(failed)?;
        let text = discarded.to_string();
        if !text.is_empty() {
            discarded.apply(run_store, fence, journal).with_context(failed)?;
            let later = text.lines().collect::<Vec<_>>().join(", ");
            tracing::info!("rolled back to {}; discarded: {later}", discarded.version);
        }
    }
    Ok(journal.put_state(KEY, &request)?)
}

impl Discarded {
    fn find(run_store: &RunStore, journal: &Journal, step: u32) -> anyhow::Result<Self> {
        let version = chosen(run_store, step)?;
        let later = journal.later(step)?.with_context(|| {
            format!(
                "the journal does not have the batch of step {step}: start another job with \
                 restoreFrom.path: {}",
                run_store.place(&checkpoints::folder(version))
            )
        })?;
        ensure!(
            later.pass_rates == 0,
            "the curriculum has measured pass rates since step {step} in place of earlier ones, so \
             that its later decisions would differ: start another job with restoreFrom.path: {}",
            run_store.place(&checkpoints::folder(version))
        );
        Ok(Self {
            version,
            later,
            checkpoints: checkpoints::after(run_store, version)?,
            exports: exports::after(run_store, step)?,
            is_final_later: exports::final_step(run_store)?.is_some_and(|found| found > step),
        })
    }

    /// See the order in the header.
    fn apply(
        &self,
        run_store: &RunStore,
        fence: &Fence,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        let Self { version, later, checkpoints, exports, is_final_later } = self;
        exports.iter().try_for_each(|folder| exports::remove(run_store, folder))?;
        for version in checkpoints.iter().rev() {
            run_store.remove_folder(&checkpoints::folder(*version), checkpoints::MANIFEST)?;
        }
        files::cut_after(fence, version.step)?;
        tensorboard::cut_after(fence.directory(), version.step)
            .context("failed to truncate the event files of TensorBoard")?;
        let before = match journal.get_state(record::KEY)? {
            Some(json) => serde_json::from_value(json)
                .context("failed to read the run's state from the journal")?,
            None => Record::default(),
        };
        let run = serde_json::to_value(before.rolled_back())?;
        // The steps are tracked in a new run of MLflow, which takes a step once.
        let traces = journal.get_state(opentelemetry::KEY)?;
        let traces = opentelemetry::rolled_back(traces.as_ref(), version.step);
        let states = [(record::KEY, run), (mlflow::KEY, Value::Null), (opentelemetry::KEY, traces)];
        let detail = json!({"to": version, "lastStep": later.last_step});
        let event = Event { at: Timestamp::now(), kind: EVENT.to_owned(), detail };
        journal.roll_back(*version, &states, &event)?;
        if *is_final_later {
            exports::remove(run_store, EXPORT_DIR)?;
        }
        Ok(())
    }
}

/// The newest complete checkpoint of a step, whose files match its manifest.
fn chosen(run_store: &RunStore, step: u32) -> anyhow::Result<Version> {
    let complete = checkpoints::complete(run_store)?;
    let Some(&version) = complete.iter().rfind(|version| version.step == step) else {
        let names = complete.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "none".to_owned() } else { names };
        bail!("no complete checkpoint of step {step}; complete ones: {names}");
    };
    if let Some(problem) = checkpoints::problem(run_store, version)? {
        bail!("checkpoint {version} cannot be restored: {problem}");
    }
    Ok(version)
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, later, checkpoints, exports, is_final_later } = self;
        if later.last_step > version.step {
            writeln!(f, "steps {} to {}", version.step.saturating_add(1), later.last_step)?;
        }
        for (count, what) in [
            (later.batches, "fixed batches"),
            (later.samples, "samples"),
            (later.evaluations, "evaluations"),
        ] {
            if count > 0 {
                writeln!(f, "{count} {what}")?;
            }
        }
        for version in checkpoints {
            writeln!(f, "{}", checkpoints::folder(*version))?;
        }
        exports.iter().try_for_each(|folder| writeln!(f, "{folder}"))?;
        if *is_final_later { writeln!(f, "{EXPORT_DIR}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
