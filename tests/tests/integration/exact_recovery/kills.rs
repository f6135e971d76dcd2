//! Kills at defined points of a run. The point is derived from logs and folders before the kill and
//! verified afterwards; the kill is repeated if the process died elsewhere.
//!
//! ```text
//!  traces ─ trigger? ─▶ kill ─▶ replacement runs ─▶ traces before restart ─ confirmed? ─▶ done
//!    ▲──────── no ──┘                                                        └─ no ─▶ repeat
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::names::{CHECKPOINTS_DIR, JOURNAL_FILE, WEIGHTS_DIR};
use rljob_tests::process::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::local_run::{LIMIT, LocalRun};

/// Log lines of process starts.
const LEARNERS_START: &str = "starting learners";
/// Name of the group of `trainer.groups` in tests.
pub const GROUP: &str = "frozen";

/// Process to kill.
#[derive(Clone, Copy, Debug)]
pub enum Victim {
    Learner(u32),
    /// A learner of a group of `trainer.groups`.
    GroupLearner(u32),
    /// The supervisor of the first process of a group.
    GroupSupervisor,
    Coordinator,
    Engine,
    /// An engine that serves the reward model.
    RewardEngine(u32),
    /// An engine that serves the teacher.
    TeacherEngine(u32),
    Supervisor,
    /// The judge of a `code` reward.
    Judge,
    /// The process of a `python` reward.
    Function,
}

/// State of a run as logs and folders show it.
#[derive(Debug)]
pub struct Traces {
    coordinator: String,
    trainer: String,
    /// Checkpoints without a manifest and incomplete published weights.
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

    /// Excludes log lines of learners after their restart, if the victim is a learner.
    fn before_restart(directory: &Path, victim: Victim) -> Self {
        let mut traces = Self::of(directory);
        if matches!(victim, Victim::Learner(_)) {
            let log = &mut traces.trainer;
            let end = log
                .rfind(LEARNERS_START)
                .unwrap_or_else(|| panic!("the learners were not restarted:\n{log}"));
            log.truncate(end);
        }
        traces
    }

    /// Whether the newest log line of a rank contains `text`.
    pub fn rank_logged(&self, rank: u32, text: &str) -> bool {
        newest(&self.trainer, &format!("[rank {rank}]")).is_some_and(|line| line.contains(text))
    }

    /// Whether an engine's weights are being updated according to the coordinator's log.
    pub fn updating(&self) -> bool {
        ["inference-0", "inference-1"].iter().any(|engine| {
            newest(&self.coordinator, &format!("weights engine=\"{engine}\""))
                .is_some_and(|line| line.contains("updating"))
        })
    }

    /// Whether the newest line of the coordinator's log is about a turn after the first.
    pub fn sampling_turn(&self) -> bool {
        self.coordinator.lines().next_back().is_some_and(|line| line.contains("sampling a turn"))
    }

    /// Number of failed engine updates.
    pub fn failed_updates(&self) -> usize {
        self.coordinator.matches("stays out of routing").count()
    }

    /// Checkpoints and weights that are incomplete.
    pub fn unfinished(&self) -> &BTreeSet<PathBuf> {
        &self.unfinished
    }

    /// Number of lines of the coordinator's log.
    pub fn lines(&self) -> usize {
        self.coordinator.lines().count()
    }
}

fn newest<'a>(log: &'a str, about: &str) -> Option<&'a str> {
    log.lines().rfind(|line| line.contains(about))
}

/// A local run whose processes the test kills.
pub struct RunUnderFaults {
    pub local: LocalRun,
    job: String,
    directory: PathBuf,
    signal: Signal,
}

/// A process stopped by SIGSTOP.
pub struct PausedProcess(Pid);

impl PausedProcess {
    pub fn pid(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    pub fn resume(self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

impl RunUnderFaults {
    pub fn new(local: LocalRun, job: &str) -> Self {
        let directory = local.runs.join("default").join(job);
        Self { local, job: job.to_owned(), directory, signal: Signal::KILL }
    }

    pub fn wait_for_steps(&self, steps: usize) {
        self.local.wait_for_steps(&self.job, steps);
    }

    /// Sends `signal` instead of SIGKILL.
    pub fn with(self, signal: Signal) -> Self {
        Self { signal, ..self }
    }

    pub fn log(&self, process: &str) -> PathBuf {
        self.directory.join(format!("logs/{process}.log"))
    }

    /// Stops a process with SIGSTOP and waits until all its threads are stopped.
    pub fn pause(&mut self, victim: Victim) -> PausedProcess {
        let pid = self.wait_for(victim, |_| true);
        kill_process(pid, Signal::STOP).unwrap();
        let tasks = || {
            fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .flatten()
                // A thread may end before it stops.
                .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        };
        wait_until("every thread to stop", LIMIT, || Ok(tasks().all(|stat| stat.contains(") T "))))
            .unwrap();
        PausedProcess(pid)
    }

    /// Stops processes permanently and waits until they are replaced.
    pub fn pause_until_replaced(&mut self, victims: &[Victim]) {
        let frozen: Vec<Pid> = victims.iter().map(|victim| self.pause(*victim).0).collect();
        for (victim, frozen) in victims.iter().zip(frozen) {
            self.wait_for(*victim, |found| found != frozen);
        }
    }

    /// Stops rank 0 while a checkpoint is incomplete and returns the checkpoint's name.
    pub fn pause_learner_during_write(&mut self) -> (PausedProcess, String) {
        let unfinished = |traces: &Traces| {
            traces
                .unfinished()
                .iter()
                .find(|folder| folder.extension().is_some_and(|attempt| attempt == "attempt-0"))
                .cloned()
        };
        loop {
            self.wait_for_traces(|traces| unfinished(traces).is_some());
            let frozen = self.pause(Victim::Learner(0));
            if let Some(folder) = unfinished(&self.traces()) {
                return (frozen, folder.file_name().unwrap().to_str().unwrap().to_owned());
            }
            frozen.resume();
        }
    }

    /// Copies the current journal into a folder.
    pub fn copy_journal(&mut self, folder: &Path) {
        let coordinator = self.pause(Victim::Coordinator);
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
        coordinator.resume();
    }

    /// Kills `victim` after `lines` further lines of the coordinator's log.
    pub fn kill_after_log_lines(&mut self, victim: Victim, lines: usize) {
        let reached = self.traces().lines() + lines;
        self.kill_when(victim, |traces| traces.lines() >= reached, |_, _| true);
    }

    /// Waits for `lines` further lines of the coordinator's log.
    pub fn wait_for_log_lines(&mut self, lines: usize) {
        let reached = self.traces().lines() + lines;
        self.wait_for_traces(|traces| traces.lines() >= reached);
    }

    pub fn traces(&self) -> Traces {
        Traces::of(&self.directory)
    }

    /// Kills the coordinator with SIGKILL while `trigger` holds. The process is stopped for the
    /// check, since a kill at another time is an exit that counts towards the limit of a run.
    pub fn kill_coordinator_when(&mut self, trigger: impl Fn(&Traces) -> bool) {
        loop {
            self.wait_for_traces(&trigger);
            let frozen = self.pause(Victim::Coordinator);
            if trigger(&self.traces()) {
                kill_process(frozen.0, Signal::KILL).unwrap();
                self.wait_for(Victim::Coordinator, |found| found != frozen.0);
                return;
            }
            frozen.resume();
        }
    }

    /// Kills `victim` when `trigger` holds; repeats until `confirmed`, given the traces at the kill
    /// and those before the restart, returns true.
    pub fn kill_when(
        &mut self,
        victim: Victim,
        trigger: impl Fn(&Traces) -> bool,
        confirmed: impl Fn(&Traces, &Traces) -> bool,
    ) {
        loop {
            let pid = self.wait_for(victim, |_| true);
            let at_kill = self.wait_for_traces(&trigger);
            // The process may have exited together with a killed peer; the loop finds its
            // replacement.
            if kill_process(pid, self.signal).is_ok() {
                self.wait_for(victim, |found| found != pid);
                if confirmed(&at_kill, &Traces::before_restart(&self.directory, victim)) {
                    return;
                }
            }
        }
    }

    /// Waits until a killed process has a replacement.
    pub fn wait_for_another(&mut self, victim: Victim, killed: Pid) {
        self.wait_for(victim, |found| found != killed);
    }

    fn wait_for(&mut self, victim: Victim, wanted: impl Fn(Pid) -> bool) -> Pid {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = match victim {
                Victim::Learner(rank) => {
                    let own = format!("--address 127.0.0.1 --rank {rank} ");
                    self.local.find("rljob-learner", &own)
                }
                Victim::GroupLearner(rank) => {
                    let own = format!("--group {GROUP} --rank {rank} ");
                    self.local.find("rljob-learner", &own)
                }
                Victim::GroupSupervisor => {
                    self.local.find("rljob-supervisor", &format!("--name trainer-{GROUP}-0"))
                }
                Victim::Coordinator => self.local.find("rljob-coordinator", ""),
                Victim::Engine => self.local.find("rljob-engine", ""),
                Victim::RewardEngine(index) => self.local.find_by_log(&format!("reward-{index}")),
                Victim::TeacherEngine(index) => self.local.find_by_log(&format!("teacher-{index}")),
                Victim::Judge => self.local.find("rljob-sandbox", " judge "),
                Victim::Function => self.local.find("python3", "Calls a reward function"),
                Victim::Supervisor => self.local.find("rljob-supervisor", "--name trainer-0"),
            };
            if let Some(pid) = found.filter(|pid| wanted(*pid)) {
                return pid;
            }
            self.wait_for_poll(deadline, &format!("{victim:?}"));
        }
    }

    fn wait_for_traces(&mut self, trigger: impl Fn(&Traces) -> bool) -> Traces {
        let deadline = Instant::now() + LIMIT;
        loop {
            let traces = self.traces();
            if trigger(&traces) {
                return traces;
            }
            self.wait_for_poll(deadline, "the trigger of the kill");
        }
    }

    /// Waits between polls; short because the trigger states are short.
    fn wait_for_poll(&mut self, deadline: Instant, what: &str) {
        self.local.assert_running();
        assert!(
            Instant::now() < deadline,
            "timed out waiting for {what}\n{}\n{:#?}",
            self.local.output(),
            self.traces()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
