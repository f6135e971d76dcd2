//! Processes of this machine in all PID namespaces, read from `/proc`.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

/// A process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    /// PID in the host's namespace.
    pub pid: Pid,
    /// Arguments, separated by spaces.
    pub command_line: String,
    /// Start time in clock ticks since boot. PIDs wrap around, so they do not order processes.
    pub started: u64,
}

/// Processes whose cgroup path contains `cgroup`.
pub fn in_pods(cgroup: &str) -> Vec<PodProcess> {
    let found = all().filter(|pid| read(*pid, "cgroup").contains(cgroup));
    found
        .map(|pid| PodProcess { pid, command_line: command_line(pid), started: started(pid) })
        .filter(|process| !process.command_line.is_empty())
        .collect()
}

/// The oldest process in the network namespace of process `init` whose command line contains
/// `command`.
pub(crate) fn in_network(init: u32, command: &str) -> Option<Pid> {
    let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let target = network(init)?;
    let here =
        |pid: &Pid| network(pid.as_raw_nonzero().get().unsigned_abs()).as_ref() == Some(&target);
    all()
        .filter(|pid| command_line(*pid).contains(command) && here(pid))
        .filter(|pid| !command_line(*pid).starts_with("nsenter"))
        .min_by_key(|pid| started(*pid))
}

/// Sends SIGCONT to a stopped process and to the `nsenter` that started it, which stopped with it
/// and would otherwise never reap it.
pub fn resume(pid: Pid) {
    let parent = stat(pid, 4).and_then(|parent| Pid::from_raw(parent.parse().ok()?));
    let entered = parent.filter(|parent| read(*parent, "comm").trim() == "nsenter");
    for pid in [Some(pid), entered].into_iter().flatten() {
        // The process may have been killed meanwhile.
        let _ = kill_process(pid, Signal::CONT);
    }
}

fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

fn started(pid: Pid) -> u64 {
    stat(pid, 22).and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

/// A field of proc_pid_stat(5) by its number, from 3 on; field 2 is the command name and may
/// contain any character.
fn stat(pid: Pid, field: usize) -> Option<String> {
    let text = read(pid, "stat");
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(field - 3).map(ToOwned::to_owned)
}

/// Empty for exited processes and zombies.
fn command_line(pid: Pid) -> String {
    read(pid, "cmdline").replace('\0', " ").trim_end().to_owned()
}

fn read(pid: Pid, file: &str) -> String {
    let path: PathBuf = ["/proc", &pid.as_raw_nonzero().to_string(), file].iter().collect();
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
