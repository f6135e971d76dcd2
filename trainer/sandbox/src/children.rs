//! Children of this process, own and adopted: reaps and kills them.

use std::collections::BTreeSet;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::sync::mpsc;

/// Capacity of the channel of exited processes.
const QUEUE: usize = 64;

/// Reaps children that have exited; returns their PIDs.
pub fn reap() -> Vec<Pid> {
    std::iter::from_fn(|| wait(WaitOptions::NOHANG).ok()?.map(|(pid, _)| pid)).collect()
}

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

/// Kills all children except `kept`. Their children are then adopted by this process, if it is a
/// subreaper.
pub fn kill_children(kept: &BTreeSet<i32>) {
    let own = getpid().as_raw_nonzero().to_string();
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| parent_of(&stat) == Some(&own))
    };
    let killed = pids.filter(is_child).filter(|pid| !kept.contains(pid)).filter_map(Pid::from_raw);
    for pid in killed {
        // The process may have exited.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills and reaps children, and the descendants that are adopted meanwhile, until none is left.
pub fn end_children() {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(None) => kill_children(&BTreeSet::new()),
        }
        if wait(WaitOptions::empty()).is_err_and(|error| error != Errno::INTR) {
            return;
        }
    }
}

/// Parent in the text of `/proc/PID/stat`: `pid (name) state parent …`. The name may contain any
/// character, also parentheses.
fn parent_of(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)
}

#[cfg(test)]
mod tests {
    use super::parent_of;

    #[test]
    fn the_parent_is_parsed_for_any_name() {
        assert_eq!(parent_of("17 (sh) S 42 17 17 0"), Some("42"));
        assert_eq!(parent_of("17 (a) S 2 (b) Z 42 17"), Some("42"));
        assert_eq!(parent_of(""), None);
    }
}
