//! Kills of processes at moments that show in what a run leaves behind: its logs and its folders.
//! Whoever turns out to have died elsewhere is killed again.
//!
//! ```text
//!  traces ─ the moment? ─▶ kill ─▶ its successor runs ─▶ traces of the dead ─ the same moment? ─▶ struck
//!    ▲──────── no ───┘                                                         └─ no ─▶ once more
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::names::{CHECKPOINTS_DIR, JOURNAL_FILE, WEIGHTS_DIR};
use rljob_tests::process::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::local_run::{LIMIT, LocalRun};

/// What the logs say when processes are started.
const LEARNERS_START: &str = "starting learners";
const COORDINATOR_STARTS: &str = "--- coordinator is started";

/// Who is killed.
#[derive(Clone, Copy, Debug)]
pub enum Victim {
    Learner(u32),
    Coordinator,
    Engine,
    Supervisor,
}

/// What a run has left behind so far.
#[derive(Debug)]
pub struct Traces {
    coordinator: String,
    trainer: String,
    /// Checkpoints without manifest, published weights that are not whole.
    unfinished: BTreeSet<PathBuf>,
}

impl Traces {
    fn of(directory: &Path) -> Self {
        let log = |name: &str| {
            fs::read_to_string(directory.join(format!("logs/{name}.log"))).unwrap_or_default()
        };
        let folders = |name: &str| {
            fs::read_dir(directory.join(name))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        let checkpoints =
            folders(CHECKPOINTS_DIR).filter(|folder| !folder.join("manifest.json").exists());
        let weights = folders(WEIGHTS_DIR)
            .filter(|folder| folder.extension().is_some_and(|extension| extension == "partial"));
        Self {
            unfinished: checkpoints.chain(weights).collect(),
            coordinator: log("coordinator"),
            trainer: log("trainer-0"),
        }
    }

    /// Without what was said after the victim's successor was started.
    fn of_the_dead(directory: &Path, victim: Victim) -> Self {
        let mut traces = Self::of(directory);
        let (log, start) = match victim {
            Victim::Learner(_) => (&mut traces.trainer, LEARNERS_START),
            Victim::Coordinator => (&mut traces.coordinator, COORDINATOR_STARTS),
            Victim::Engine | Victim::Supervisor => return traces,
        };
        let end = log.rfind(start).unwrap_or_else(|| panic!("nothing was started again:\n{log}"));
        log.truncate(end);
        traces
    }

    /// Whether the newest line of a rank has these words.
    pub fn rank_says(&self, rank: u32, words: &str) -> bool {
        newest(&self.trainer, &format!("[rank {rank}]")).is_some_and(|line| line.contains(words))
    }

    /// Whether an engine's weights are being updated, as far as the coordinator says.
    pub fn updating(&self) -> bool {
        ["inference-0", "inference-1"].iter().any(|engine| {
            newest(&self.coordinator, &format!("weights engine=\"{engine}\""))
                .is_some_and(|line| line.contains("updating"))
        })
    }

    /// How often an update of an engine failed.
    pub fn failed_updates(&self) -> usize {
        self.coordinator.matches("stays out of routing").count()
    }

    /// What is being written, or was left half-written.
    pub fn unfinished(&self) -> &BTreeSet<PathBuf> {
        &self.unfinished
    }

    /// Lines of the coordinator's log.
    pub fn lines(&self) -> usize {
        self.coordinator.lines().count()
    }
}

fn newest<'a>(log: &'a str, about: &str) -> Option<&'a str> {
    log.lines().rfind(|line| line.contains(about))
}

/// A run whose processes are killed.
pub struct Struck {
    pub local: LocalRun,
    job: String,
    directory: PathBuf,
    signal: Signal,
}

/// A process that answers nothing.
pub struct Frozen(Pid);

impl Frozen {
    pub fn pid(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    pub fn thaw(self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

impl Struck {
    pub fn new(local: LocalRun, job: &str) -> Self {
        let directory = local.runs.join("default").join(job);
        Self { local, job: job.to_owned(), directory, signal: Signal::KILL }
    }

    pub fn wait_for_steps(&self, steps: usize) {
        self.local.wait_for_steps(&self.job, steps);
    }

    /// Sends another signal than SIGKILL.
    pub fn with(self, signal: Signal) -> Self {
        Self { signal, ..self }
    }

    pub fn log(&self, process: &str) -> PathBuf {
        self.directory.join(format!("logs/{process}.log"))
    }

    /// Stops a process without ending it.
    pub fn freeze(&mut self, victim: Victim) -> Frozen {
        let pid = self.wait_for(victim, |_| true);
        kill_process(pid, Signal::STOP).unwrap();
        let tasks = || {
            fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .flatten()
                .map(|task| fs::read_to_string(task.path().join("stat")).unwrap())
        };
        wait_until("every thread to stop", LIMIT, || Ok(tasks().all(|stat| stat.contains(") T "))))
            .unwrap();
        Frozen(pid)
    }

    /// Stops processes for good and waits until they are replaced.
    pub fn stop(&mut self, victims: &[Victim]) {
        let frozen: Vec<Pid> = victims.iter().map(|victim| self.freeze(*victim).0).collect();
        for (victim, frozen) in victims.iter().zip(frozen) {
            self.wait_for(*victim, |found| found != frozen);
        }
    }

    /// Stops rank 0 while a checkpoint is not whole; answers the checkpoint's name.
    pub fn freeze_learner_that_writes(&mut self) -> (Frozen, String) {
        let unfinished = |traces: &Traces| {
            traces
                .unfinished()
                .iter()
                .find(|folder| folder.extension().is_some_and(|attempt| attempt == "attempt-0"))
                .cloned()
        };
        loop {
            self.await_moment(|traces| unfinished(traces).is_some());
            let frozen = self.freeze(Victim::Learner(0));
            if let Some(folder) = unfinished(&self.traces()) {
                return (frozen, folder.file_name().unwrap().to_str().unwrap().to_owned());
            }
            frozen.thaw();
        }
    }

    /// The journal as it is now, in a folder.
    pub fn copy_journal(&mut self, folder: &Path) {
        let coordinator = self.freeze(Victim::Coordinator);
        let journal = fs::read_link(self.directory.join(JOURNAL_FILE))
            .unwrap()
            .into_os_string()
            .into_string()
            .unwrap();
        for (name, copy) in [
            (journal.clone(), JOURNAL_FILE.to_owned()),
            (format!("{journal}-wal"), format!("{JOURNAL_FILE}-wal")),
        ] {
            fs::copy(self.directory.join(name), folder.join(copy)).unwrap();
        }
        coordinator.thaw();
    }

    /// After so many more lines of the coordinator's log, which follows everything that a run does.
    pub fn anywhere(&mut self, victim: Victim, lines: usize) {
        let reached = self.traces().lines() + lines;
        self.strike(victim, |traces| traces.lines() >= reached, |_, _| true);
    }

    /// Waits until the coordinator's log has so many lines more.
    pub fn await_lines(&mut self, lines: usize) {
        let reached = self.traces().lines() + lines;
        self.await_moment(|traces| traces.lines() >= reached);
    }

    pub fn traces(&self) -> Traces {
        Traces::of(&self.directory)
    }

    /// Kills `victim` in `moment`; `there` says of the traces at the kill and of those of the dead
    /// whether that is where it died.
    pub fn strike(
        &mut self,
        victim: Victim,
        moment: impl Fn(&Traces) -> bool,
        there: impl Fn(&Traces, &Traces) -> bool,
    ) {
        loop {
            let pid = self.wait_for(victim, |_| true);
            let at_kill = self.await_moment(&moment);
            // One that a killed peer took along is found again.
            if kill_process(pid, self.signal).is_ok() {
                self.wait_for(victim, |found| found != pid);
                if there(&at_kill, &Traces::of_the_dead(&self.directory, victim)) {
                    return;
                }
            }
        }
    }

    fn wait_for(&mut self, victim: Victim, wanted: impl Fn(Pid) -> bool) -> Pid {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = match victim {
                Victim::Learner(rank) => {
                    self.local.find("rljob-learner", &format!("--rank {rank} "))
                }
                Victim::Coordinator => self.local.find("rljob-coordinator", ""),
                Victim::Engine => self.local.find("rljob-engine", ""),
                Victim::Supervisor => self.local.find("rljob-supervisor", ""),
            };
            if let Some(pid) = found.filter(|pid| wanted(*pid)) {
                return pid;
            }
            self.pause(deadline, &format!("{victim:?}"));
        }
    }

    fn await_moment(&mut self, moment: impl Fn(&Traces) -> bool) -> Traces {
        let deadline = Instant::now() + LIMIT;
        loop {
            let traces = self.traces();
            if moment(&traces) {
                return traces;
            }
            self.pause(deadline, "the moment to kill");
        }
    }

    /// Between two looks, which are close together because moments are short.
    fn pause(&mut self, deadline: Instant, what: &str) {
        self.local.assert_running();
        assert!(
            Instant::now() < deadline,
            "waited in vain for {what}\n{}\n{:#?}",
            self.local.output(),
            self.traces()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
