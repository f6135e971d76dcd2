//! Log of the processes of the runner: in pods JSON lines, as of all processes of a job. Standard
//! error of commands is copied to it unchanged.

use std::sync::Once;

use rljob_logging::{Format, Identity};

/// Starts the log of this process, once. It has a thread, which has the filter of system calls only
/// if that is installed before.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        rljob_logging::init(Format::from_environment(), Identity::from_environment());
    });
}
