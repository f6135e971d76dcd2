//! Names of the sessions of servers: one per sample. A sample that starts again after a failure has
//! the same session.

use crate::rollout::request::Key;

/// Session of a sample. `run` distinguishes the sessions of runs that share a server.
pub fn session(run: &str, key: Key) -> String {
    let Key { purpose, step, position, index, .. } = key;
    format!("{run}-{purpose:?}-{step}-{position}-{index}").to_lowercase()
}
