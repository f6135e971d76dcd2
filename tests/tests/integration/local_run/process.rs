//! A running `rljob run` and its processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::files::binary;
use rljob_tests::process::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// Time limit of the small jobs on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
/// Log level at which processes report the stages in which tests kill them.
const LOG: &str = "info,rljob_coordinator=debug,rljob_learner=debug";

/// A running `rljob run` whose output goes to a file; killed on drop.
pub(crate) struct LocalRun {
    child: Child,
    pub(crate) runs: PathBuf,
    log: PathBuf,
}

impl LocalRun {
    pub(crate) fn start(folder: &Path, runs: &str) -> Self {
        Self::start_with(folder, runs, &[])
    }

    pub(crate) fn start_with(folder: &Path, runs: &str, more: &[&str]) -> Self {
        Self::start_in(folder, runs, more, &[])
    }

    /// Adds environment variables.
    pub(crate) fn start_in(
        folder: &Path,
        runs: &str,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_command("run", folder, runs, more, environment)
    }

    /// `rljob run` or `rljob evaluate`.
    pub(crate) fn start_command(
        command: &str,
        folder: &Path,
        runs: &str,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let log = folder.join(format!("{runs}.log"));
        let output = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child = Command::new(binary("rljob").unwrap())
            .args([command, "--file", "jobs.yaml", "--dir", runs])
            .args(more)
            .current_dir(folder)
            .env("RUST_LOG", LOG)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, runs: folder.join(runs), log }
    }

    pub(crate) fn wait_for_steps(&self, job: &str, steps: usize) {
        let metrics = self.runs.join("default").join(job).join(METRICS_FILE);
        let done = || fs::read_to_string(&metrics).unwrap_or_default().lines().count();
        wait_until(&format!("step {steps} of {job}"), LIMIT, || Ok(done() >= steps))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.output()));
    }

    /// Kills the first process of this program.
    pub(crate) fn kill(&self, program: &str) {
        let victim = self
            .find(program, "")
            .unwrap_or_else(|| panic!("no {program} process is running\n{}", self.output()));
        kill_process(victim, Signal::KILL).unwrap();
    }

    /// The first process of this run with this program and `argument` in its command line.
    pub(crate) fn find(&self, program: &str, argument: &str) -> Option<Pid> {
        let matches = |pid: &u32| {
            let line = command_line(*pid);
            line.split(' ').next().is_some_and(|path| path.ends_with(program))
                && line.contains(argument)
        };
        descendants(self.child.id())
            .into_iter()
            .find(matches)
            .and_then(|pid| Pid::from_raw(pid.cast_signed()))
    }

    /// The process of this run with this name, by the file that its output goes to.
    pub(crate) fn find_by_log(&self, name: &str) -> Option<Pid> {
        let file = format!("{name}.log");
        let writes = |pid: &u32| {
            let output = fs::read_link(format!("/proc/{pid}/fd/1"));
            output.is_ok_and(|path| path.ends_with(&file))
        };
        let pid = descendants(self.child.id()).into_iter().find(writes)?;
        Pid::from_raw(pid.cast_signed())
    }

    /// Panics if the run has exited.
    pub(crate) fn assert_running(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the run has exited\n{}", self.output());
    }

    /// Sends a signal to `rljob run` itself.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills `rljob run` itself and waits until all its processes have exited.
    pub(crate) fn kill_all(mut self) {
        let others = descendants(self.child.id());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        wait_until("all its processes to exit", LIMIT, || {
            Ok(others.iter().all(|pid| command_line(*pid).is_empty()))
        })
        .unwrap();
    }

    /// Waits for the exit; returns exit code and output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let ended =
            wait_until("the exit of rljob run", LIMIT, || Ok(self.child.try_wait()?.is_some()));
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", self.output()));
        (self.child.wait().unwrap().code(), self.output())
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Command line of a process; empty if it has exited.
fn command_line(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// All descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children =
        threads.flat_map(|thread| fs::read_to_string(thread.path().join("children")).into_iter());
    let children: Vec<u32> = children
        .flat_map(|line| {
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    children.iter().flat_map(|child| [vec![*child], descendants(*child)].concat()).collect()
}
