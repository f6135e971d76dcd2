//! Orphan reaping: as PID 1 of a container, a supervisor inherits orphans and collects those that
//! have exited. Its own children are waited for by their tasks.

use std::path::Path;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Collects exited children that are not in `own`. Does nothing unless this process is PID 1.
pub fn reap_orphans(own: &[u32]) {
    if std::process::id() != 1 {
        return;
    }
    for pid in exited_children(Path::new("/proc"), 1).into_iter().filter(|pid| !own.contains(pid)) {
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            // A child that was already collected is not an error.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn exited_children(proc: &Path, parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        std::fs::read_to_string(proc.join(pid.to_string()).join("stat"))
            .is_ok_and(|stat| is_exited_child(&stat, parent))
    })
    .collect()
}

/// Reads `/proc/PID/stat`: `pid (name) state parent …`, where the name may contain any character,
/// including parentheses.
fn is_exited_child(stat: &str, parent: u32) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    fields.next() == Some("Z") && fields.next() == Some(parent.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::is_exited_child;

    #[test]
    fn only_exited_children_of_the_parent_are_found() {
        assert!(is_exited_child("17 (sh) Z 1 17 17 0", 1));
        assert!(is_exited_child("17 (a) S 2 (b) Z 1 17", 1));
        assert!(!is_exited_child("17 (sh) S 1 17 17 0", 1));
        assert!(!is_exited_child("17 (sh) Z 12 17 17 0", 1));
        assert!(!is_exited_child("", 1));
    }
}
