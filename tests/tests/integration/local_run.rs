//! `rljob run` as a user runs it: what is killed or interrupted on the way changes nothing in the weights at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_tests::files::{binary, workspace};
use rljob_tests::process::{run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// What one of the small jobs may take on a machine that does other things beside.
const LIMIT: Duration = Duration::from_secs(240);
/// As shells count it: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// A folder with the jobs and their data, and what an undisturbed run made of them.
struct Undisturbed {
    folder: TempDir,
    exports: [Vec<u8>; 2],
}

fn undisturbed() -> &'static Undisturbed {
    static RUN: OnceLock<Undisturbed> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        run(Command::new("python3").arg(workspace().join("manifests/samples/quickstart/make_data.py")).arg(folder.path())).unwrap();
        fs::write(folder.path().join("jobs.yaml"), include_str!("local_run/jobs.yaml")).unwrap();
        let local = LocalRun::start(folder.path(), "undisturbed");
        let (code, output) = local.end();
        assert_eq!(code, Some(0), "{output}");
        Undisturbed { exports: exports(&folder.path().join("undisturbed")), folder }
    })
}

/// The exported weights of both jobs, byte for byte.
fn exports(runs: &Path) -> [Vec<u8>; 2] {
    ["imitate", "practise"].map(|job| fs::read(runs.join("default").join(job).join(EXPORT_DIR).join("model.safetensors")).unwrap())
}

/// A running `rljob run`, whose output is kept; killed when the test ends before it.
struct LocalRun {
    child: Child,
    runs: PathBuf,
    log: PathBuf,
}

impl LocalRun {
    fn start(folder: &Path, runs: &str) -> Self {
        let log = folder.join(format!("{runs}.log"));
        let output = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child = Command::new(binary("rljob").unwrap())
            .args(["run", "--file", "jobs.yaml", "--dir", runs])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, runs: folder.join(runs), log }
    }

    fn wait_for_steps(&self, job: &str, steps: usize) {
        let metrics = self.runs.join("default").join(job).join(METRICS_FILE);
        let done = || fs::read_to_string(&metrics).unwrap_or_default().lines().count();
        wait_until(&format!("step {steps} of {job}"), LIMIT, || Ok(done() >= steps)).unwrap_or_else(|error| panic!("{error:#}\n{}", self.output()));
    }

    /// Kills one process of that name among the descendants of this run.
    fn kill(&self, name: &str) {
        let victim = descendants(self.child.id()).into_iter().find(|pid| command_name(*pid) == name);
        let victim = victim.unwrap_or_else(|| panic!("no {name} runs\n{}", self.output()));
        kill_process(Pid::from_raw(victim.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for the end: exit code and output.
    fn end(mut self) -> (Option<i32>, String) {
        let ended = wait_until("the end of rljob run", LIMIT, || Ok(self.child.try_wait()?.is_some()));
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", self.output()));
        (self.child.wait().unwrap().code(), self.output())
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel's name of a process, cut to 15 bytes by the kernel.
fn command_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Children, their children and so on.
fn descendants(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.flat_map(|thread| fs::read_to_string(thread.path().join("children")).into_iter());
    let children: Vec<u32> = children.flat_map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect();
    children.iter().flat_map(|child| [vec![*child], descendants(*child)].concat()).collect()
}

fn assert_same_weights(local: LocalRun) {
    let runs = local.runs.clone();
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    for (job, (disturbed, undisturbed)) in ["imitate", "practise"].iter().zip(exports(&runs).iter().zip(&undisturbed().exports)) {
        assert!(disturbed == undisturbed, "the weights of {job} differ from those of the undisturbed run\n{output}");
    }
}

#[test]
fn killed_learners_go_on_and_the_final_weights_are_the_same_bits() {
    let local = LocalRun::start(undisturbed().folder.path(), "killed");
    local.wait_for_steps("imitate", 70);
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 3); // before the first checkpoint
    local.kill("rljob-learner");
    local.wait_for_steps("practise", 8); // after it
    local.kill("rljob-learner");
    assert_same_weights(local);
}

#[test]
fn every_other_process_may_be_killed_too() {
    let local = LocalRun::start(undisturbed().folder.path(), "all-killed");
    local.wait_for_steps("practise", 2);
    local.kill("rljob-engine");
    local.wait_for_steps("practise", 4);
    local.kill("rljob-coordinat");
    local.wait_for_steps("practise", 7);
    local.kill("rljob-superviso");
    assert_same_weights(local);
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_ends_with_the_same_bits() {
    let folder = undisturbed().folder.path();
    let local = LocalRun::start(folder, "interrupted");
    local.wait_for_steps("practise", 7);
    local.interrupt();
    let (code, output) = local.end();
    assert_eq!(code, Some(INTERRUPTED), "{output}");
    assert!(output.ends_with("practise is in a checkpoint. To go on:\n  rljob run -f jobs.yaml --dir interrupted\n"), "{output}");
    assert_same_weights(LocalRun::start(folder, "interrupted"));
}
