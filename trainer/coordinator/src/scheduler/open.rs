//! Opens the input of a run: models, data, verifiers.

use std::sync::Arc;

use rljob_crds::names::DROPPED_ROWS_FILE;

use super::failure::retry_delay;
use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::data::{Dataset, Part};
use crate::input::{self, Input, InputError};
use crate::persistence::data_identity::DataIdentityError;
use crate::work_error::WorkError;

/// Opens the input. Returns errors that fail the run.
pub async fn open_with_retries(coordinator: &Coordinator) -> Result<Input, WorkError> {
    let mut failures = 0_u32;
    loop {
        let error = match open(coordinator).await {
            Err(error) if !error.is_fatal() => crate::error_line(&error),
            opened => return opened,
        };
        tracing::error!(error, "failed to open the input; retrying");
        tokio::time::sleep(retry_delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}

async fn open(coordinator: &Coordinator) -> Result<Input, WorkError> {
    let config = &coordinator.config;
    let downloads = &coordinator.downloads;
    input::hub::download(config, &coordinator.run_store, downloads)
        .await
        .map_err(InputError::from)?;
    input::wait_for_model(config).await?;
    let (config, runner) = (Arc::clone(&coordinator.config), coordinator.reward_runner.clone());
    let engines = coordinator.fixed_fleets.clone();
    let open = move || Input::open(&config, &runner, &engines);
    let input = tokio::task::spawn_blocking(open).await??;
    check_rewards(coordinator, &input).await?;
    let (Some(train), Some(identity)) = (&input.train, input.train_identity.clone()) else {
        return Ok(input);
    };
    match identity.check(&coordinator.journal, train.path().to_owned()).await {
        Ok(()) => {}
        Err(DataIdentityError::Journal(error)) => return Err(error.into()),
        Err(error) => return Err(InputError::from(error).into()),
    }
    let done = coordinator.run.read(Run::last_step).await;
    input::check_epochs(&coordinator.config.spec, train.len(), done)?;
    Ok(input)
}

/// Fails the run if a reward can never score. In verifier pods, which are started by calls, the
/// first completion finds that.
async fn check_rewards(coordinator: &Coordinator, input: &Input) -> Result<(), WorkError> {
    let rewards = input.rewards.as_ref().filter(|_| coordinator.verifier_pods().is_none());
    let Some(rewards) = rewards else { return Ok(()) };
    match rewards.check().await {
        Err(error) if error.is_permanent() => Err(error.into()),
        Err(error) => {
            let error = crate::error_line(&error);
            tracing::warn!(error, "a reward was not checked before the first completion");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Records the opened input and makes it available to the learners.
pub async fn input_opened(coordinator: &Coordinator, input: &Arc<Input>) {
    let rows = |part: &Part| {
        let (dropped, unusable) = (part.filtered().len(), part.unusable().len());
        let rows =
            serde_json::json!({"rows": part.len(), "dropped": dropped, "unusable": unusable});
        if let Some((count, first)) = part.equal_pairs() {
            let (data, first) = (part.label(), first.to_string());
            tracing::warn!(data, count, first, "pairs have equal chosen and rejected");
        }
        (part.label().to_owned(), rows)
    };
    let parts = input.datasets().flat_map(Dataset::parts);
    let detail = serde_json::Value::Object(parts.map(rows).collect());
    coordinator.recorder.event("DataOpened", detail).await;
    list_dropped_rows(coordinator, input).await;
    coordinator.batches.set_input(Arc::clone(input));
    let (files, data) = (coordinator.recorder.files.clone(), Arc::clone(input));
    let appended = coordinator.journal.call(move |journal| {
        data.train.as_ref().map_or(Ok(()), |train| files.append_samples(journal, train))
    });
    if let Err(error) = appended.await {
        tracing::warn!(error = %crate::error_line(&error), "failed to append to samples.jsonl");
    }
    let rows = input.train.as_ref().map_or(0, Dataset::len);
    let steps = input::steps_of_epochs(&coordinator.config.spec, rows);
    if let Err(error) = coordinator.run.change(|run, _| run.data_opened(steps)).await {
        tracing::error!(error = %crate::error_line(&error), "failed to record the run's state");
    }
}

/// Counts the rows with unusable reference answers, and lists all dropped rows in the run
/// directory.
async fn list_dropped_rows(coordinator: &Coordinator, input: &Arc<Input>) {
    let (fence, data) = (coordinator.journal.fence().clone(), Arc::clone(input));
    let rows = move || {
        let parts = || data.datasets().flat_map(Dataset::parts);
        let unusable =
            parts().flat_map(|part| part.unusable().iter().map(|row| row.line(part.label())));
        let filtered =
            parts().flat_map(|part| part.filtered().iter().map(|row| row.line(part.label())));
        crate::files::write_dropped_rows(&fence, unusable.chain(filtered))
    };
    let parts = input.datasets().flat_map(Dataset::parts);
    let count = parts.fold(0_usize, |sum, part| sum.saturating_add(part.unusable().len()));
    coordinator.recorder.metrics.dropped_rows.set(i64::try_from(count).unwrap_or(i64::MAX));
    if count > 0 {
        tracing::warn!(
            rows = count,
            file = DROPPED_ROWS_FILE,
            "dropped rows whose reference answers no reward can compare"
        );
    }
    match tokio::task::spawn_blocking(rows).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to write {DROPPED_ROWS_FILE}"),
        Err(error) => tracing::warn!(%error, "failed to list dropped rows"),
    }
}
