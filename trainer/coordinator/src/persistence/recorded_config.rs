//! Run configuration in the run store, `run.json`, for readers such as `rljob report`. Processes of
//! the run read that of `--config`.

use rljob_crds::RunConfig;
use rljob_crds::names::RUN_CONFIG_FILE;
use rljob_protocol::run_config;
use rljob_storage::{MAX_MANIFEST, RunStore};

/// Writes the configuration unless the file has the same one: that of a local run is written by
/// `rljob run`. Only the owner of the run store may call this. Blocks.
pub fn record(config: &RunConfig, run_store: &RunStore) -> anyhow::Result<()> {
    let recorded = run_store.read(RUN_CONFIG_FILE, MAX_MANIFEST)?;
    // A file that cannot be parsed is replaced.
    let recorded = recorded.and_then(|bytes| run_config::parse(str::from_utf8(&bytes).ok()?).ok());
    if recorded.is_some_and(|(recorded, _)| recorded == *config) {
        return Ok(());
    }
    Ok(run_store.put(RUN_CONFIG_FILE, serde_json::to_vec_pretty(config)?)?)
}
