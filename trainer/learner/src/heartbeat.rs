//! Heartbeats for the supervisor: one byte a second on standard output, [`PROGRESS`] if the
//! training loop advanced since the last one, else [`BEAT`]. A missing byte means that the process
//! is stopped, a missing [`PROGRESS`] that the loop hangs. Neither needs the coordinator or a file.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rljob_kernels::KernelError;
use rljob_kernels::device::call_when_done;
use rljob_protocol::supervisor::{BEAT, PROGRESS, SUPERVISOR_PID_VARIABLE};
use tch::Device;

const PERIOD: Duration = Duration::from_secs(1);

/// Number of calls of [`advance`] in this process.
static ADVANCES: AtomicU64 = AtomicU64::new(0);

/// Records progress: a micro-batch, a tensor, a response.
pub fn advance() {
    ADVANCES.fetch_add(1, Ordering::Relaxed);
}

/// Records progress once `device` has done what this thread has queued on it, so that a GPU that
/// hangs shows, although the host queues work ahead of it.
///
/// # Errors
/// CUDA.
pub fn advance_after(device: Device) -> Result<(), KernelError> {
    extern "C" fn run() {
        advance();
    }
    call_when_done(device, run)
}

/// Starts the heartbeat thread, unless the process was started without a supervisor.
///
/// # Errors
/// The thread cannot be started.
pub fn start() -> io::Result<()> {
    if std::env::var_os(SUPERVISOR_PID_VARIABLE).is_none() {
        return Ok(());
    }
    let beat = || {
        let mut seen = 0;
        loop {
            let advances = ADVANCES.load(Ordering::Relaxed);
            let mut out = io::stdout().lock();
            if out
                .write_all(&[if advances == seen { BEAT } else { PROGRESS }])
                .and_then(|()| out.flush())
                .is_err()
            {
                return;
            }
            seen = advances;
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new().name("heartbeat".to_owned()).spawn(beat).map(drop)
}
