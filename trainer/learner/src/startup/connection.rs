//! What every learner does first: connects to the coordinator, configures libtorch and waits for
//! the model folder.

use rljob_crds::RunConfig;
use rljob_crds::names::TOKEN_LEARNER;
use rljob_http::{ClientTls, Role};
use rljob_storage::RunStore;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use rljob_storage::model_folder::ModelFolderWait;

use super::arguments::StartArguments;
use super::error::StartError;
use crate::coordinator_client::CoordinatorClient;
use crate::heartbeat;

/// A client of the run's coordinator.
pub(super) fn connect(
    config: &RunConfig,
    arguments: &StartArguments,
    run_store: &RunStore,
) -> Result<CoordinatorClient, StartError> {
    let tls = ClientTls::of_file(
        &arguments.tokens.join(Role::Trainer.file()),
        &Role::Coordinator.server_name(&config.uid),
    )?;
    Ok(CoordinatorClient::new(
        &arguments.coordinator,
        CoordinatorResolver::of(run_store.clone()),
        arguments.tokens.join(TOKEN_LEARNER),
        Some(&tls),
        arguments.epoch,
        arguments.attempt,
    )?)
}

/// Configures libtorch for `threads` threads, and waits until the model folder is complete.
pub(super) fn prepare(config: &RunConfig, threads: u32) -> Result<(), StartError> {
    let RunConfig { spec, model_directory, .. } = config;
    rljob_collective::set_num_threads(threads);
    rljob_collective::keep_freed_memory();
    if spec.training.deterministic {
        rljob_collective::set_deterministic(true)?;
    }
    let mut wait = ModelFolderWait::new(model_directory, &spec.model);
    while !wait.is_complete()? {
        heartbeat::advance();
        std::thread::sleep(ModelFolderWait::INTERVAL);
    }
    Ok(())
}
