//! Memory of a sandbox: a thread sums what its processes have resident, and kills them while it is
//! more than the limit. The resource limits hold for each process alone.
//!
//! ```text
//!  this process ─▶ enter ─▶ driver ─▶ test ─▶ …
//!                  └ spared ───────┘  └ killed ┘
//! ```
//!
//! Between two sums, a program may exceed the limit.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rljob_sandbox::plan::Plan;
use rustix::param::page_size;
use rustix::process::{Pid, Signal, getpid, kill_process};

/// Time between two sums.
const PERIOD: Duration = Duration::from_millis(20);
/// Bytes that the processes of the sandbox itself may have beside those of the program.
const OWN: u64 = 32 << 20;
const KIB: u64 = 1024;

/// Limits the memory of all descendants of this process together until it is dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    shared: Arc<Shared>,
    /// The thread and what ends it when it is dropped.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Shared {
    bytes: AtomicU64,
    is_exceeded: AtomicBool,
}

/// A process and the number of processes between it and this one.
#[derive(Clone, Copy, Debug)]
struct Descendant {
    pid: i32,
    generation: usize,
}

impl MemoryLimit {
    /// Limits it to the address space of the plan. Spares the process that has entered namespaces
    /// and the next `spared` generations: they are not the program.
    pub fn start(plan: &Plan, spared: usize) -> Self {
        let spared = spared.saturating_add(usize::from(plan.namespaces));
        let bytes = AtomicU64::new(plan.address_space);
        let is_exceeded = AtomicBool::new(false);
        let shared = Arc::new(Shared { bytes, is_exceeded });
        let (sender, ended) = channel();
        let limit = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                limit.enforce(spared);
            }
        });
        Self { shared, thread: Some((sender, thread)) }
    }

    /// Sets another limit.
    pub fn set(&self, bytes: u64) {
        self.shared.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether processes were killed since the last call.
    pub fn was_exceeded(&self) -> bool {
        self.shared.is_exceeded.swap(false, Ordering::AcqRel)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn enforce(&self, spared: usize) {
        let processes = descendants();
        let limit = self.bytes.load(Ordering::Relaxed).saturating_add(OWN);
        // The first sum counts a page for each process that shares it.
        if sum(&processes, resident) <= limit || sum(&processes, share) <= limit {
            return;
        }
        self.is_exceeded.store(true, Ordering::Release);
        let program = processes.iter().filter(|process| process.generation >= spared);
        for pid in program.filter_map(|process| Pid::from_raw(process.pid)) {
            // The process may have exited.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The descendants of this process, parents first.
fn descendants() -> Vec<Descendant> {
    let mut found = children(getpid().as_raw_nonzero().get(), 0);
    let mut next = 0_usize;
    while let Some(Descendant { pid, generation }) = found.get(next).copied() {
        found.extend(children(pid, generation.saturating_add(1)));
        next = next.saturating_add(1);
    }
    found
}

fn children(pid: i32, generation: usize) -> Vec<Descendant> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = |list: String| -> Vec<i32> {
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(pids).map(|pid| Descendant { pid, generation }).collect()
}

fn sum(processes: &[Descendant], bytes: fn(i32) -> u64) -> u64 {
    processes.iter().map(|process| bytes(process.pid)).fold(0, u64::saturating_add)
}

/// Bytes of the pages that a process has in memory; 0 if it has exited.
fn resident(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or_default().saturating_mul(page_size() as u64)
}

/// Bytes of a process in memory and swap, where a page that n processes share counts 1/n. Where
/// this process may not read them, those of `resident`.
fn share(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    text.map_or_else(|_| resident(pid), |text| proportional(&text))
}

/// The sum of `Pss` and `SwapPss` of a `smaps_rollup`, in bytes.
fn proportional(rollup: &str) -> u64 {
    let fields = rollup.lines().filter_map(|line| line.split_once(':'));
    let own = fields.filter(|(name, _)| ["Pss", "SwapPss"].contains(name));
    let kib = own.filter_map(|(_, value)| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.fold(0, u64::saturating_add).saturating_mul(KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_pages_count_in_proportion_and_swapped_ones_too() {
        let rollup = "55-7f ---p 00000000 00:00 0    [rollup]\nRss:      1740 kB\n\
                      Pss:       242 kB\nPss_Anon:  112 kB\nSwap:  9 kB\nSwapPss:   8 kB\n";
        assert_eq!(proportional(rollup), 250 * KIB);
        assert_eq!(proportional(""), 0);
    }

    #[test]
    fn a_process_has_memory_until_it_has_exited() {
        let own = std::process::id().cast_signed();
        assert!(resident(own) > 0 && share(own) > 0);
        assert_eq!((resident(-1), share(-1)), (0, 0));
    }
}
