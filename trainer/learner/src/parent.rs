//! A learner never outlives its supervisor: the kernel kills it when the supervisor dies.

use rljob_protocol::supervisor::SUPERVISOR_PID_VARIABLE;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The supervisor died before it could be followed.
#[derive(Debug, thiserror::Error)]
pub enum ParentError {
    /// The kernel refused.
    #[error("failed to ask to die with the supervisor")]
    Kernel(#[from] rustix::io::Errno),
    /// It is gone.
    #[error("the supervisor of process id {0} is gone")]
    Gone(String),
}

/// Ties this process to its parent. Checked afterwards: the parent may have died just before.
pub fn die_with_supervisor() -> Result<(), ParentError> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match std::env::var(SUPERVISOR_PID_VARIABLE) {
        Ok(pid)
            if getppid().map(Pid::as_raw_nonzero).map(|parent| parent.get().to_string())
                != Some(pid.clone()) =>
        {
            Err(ParentError::Gone(pid))
        }
        // Started by hand, there is no supervisor to follow but the parent.
        _ => Ok(()),
    }
}
