//! Exit of children of this process, own and adopted.

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::sync::mpsc;

/// Capacity of the channel of exited processes.
const QUEUE: usize = 64;

/// Reaps children on a thread. The channel closes when none is left.
pub fn reaper() -> mpsc::Receiver<(Pid, WaitStatus)> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some(ended)) if sender.blocking_send(ended).is_ok() => {}
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some(_)) | Err(_) => return,
            }
        }
    });
    receiver
}
