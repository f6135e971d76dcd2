//! Parent-death signal: the kernel kills a learner when its supervisor exits.

use rljob_protocol::supervisor::SUPERVISOR_PID_VARIABLE;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The supervisor has exited, or its exit cannot be monitored.
#[derive(Debug, thiserror::Error)]
pub enum ParentError {
    #[error("failed to set the parent-death signal")]
    Kernel(#[from] rustix::io::Errno),
    #[error("the supervisor with process id {0} has exited")]
    Exited(String),
}

/// Requests SIGKILL when the parent exits. The parent is checked afterwards, because it may have
/// exited before the request.
///
/// # Errors
/// The request failed, or the supervisor has exited.
pub fn die_with_supervisor() -> Result<(), ParentError> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match std::env::var(SUPERVISOR_PID_VARIABLE) {
        Ok(pid)
            if getppid().map(Pid::as_raw_nonzero).map(|parent| parent.get().to_string())
                != Some(pid.clone()) =>
        {
            Err(ParentError::Exited(pid))
        }
        // Without the variable the process was started manually, and any parent is accepted.
        _ => Ok(()),
    }
}
