//! Commands of the documents on a cluster, run as printed in the order of the pages, on a job with
//! simulated pods. Those that need a kubelet run in `e2e::documents`.

use std::fs;
use std::process::Child;

use rljob_tests::Namespace;
use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;

use super::cluster;
use super::operator::{LIMIT, Operator};
use super::simulated_pods::SimulatedPods;
use crate::documents::commands::{Place, commands_of};
use crate::documents::objects_of;
use crate::documents::user::User;
use rljob_tests::documents::blocks_in;

/// Parts of commands that end with the job.
const UNTIL_THE_END: [&str; 2] = ["--watch", "completionTime"];
/// Namespaces that the pages create.
const NAMESPACES: [&str; 2] = ["team-a", "lab"];

/// A reader with a job.
struct Reader {
    user: User,
    namespace: Namespace,
    pods: SimulatedPods,
    _operator: Operator,
    /// Commands that end with the job.
    waiting: Vec<(String, Child)>,
}

impl Reader {
    fn start() -> Self {
        let namespace = Namespace::create(cluster(), "reader").unwrap();
        let operator = Operator::start(&namespace, "rljob:a");
        let pods = SimulatedPods::start(&namespace);
        pods.run.lock().checkpoints = vec!["step-40.attempt-0", "step-60.attempt-0"];
        pods.run.lock().step = 60;
        let user = User::new();
        let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
        user.write("job.yaml", &blocks_in(&readme, "yaml").remove(0));
        user.write("ca.crt", "");
        user.write("reward.py", "");
        let mut objects = objects_of("v1").into_iter();
        let claim = objects.find(|text| text.contains("kind: PersistentVolumeClaim"));
        user.write("claim.yaml", &claim.unwrap());
        let reader = Self { user, namespace, pods, _operator: operator, waiting: Vec::new() };
        reader.shell("kubectl apply --filename claim.yaml").unwrap();
        reader
    }

    /// Runs a command with the default namespace of the job, also after one that selects another.
    fn shell(&self, command: &str) -> Result<String, String> {
        self.select_namespace();
        self.user.shell(command)
    }

    fn select_namespace(&self) {
        self.user.use_namespace(cluster().kubeconfig(), &self.namespace.name);
    }

    /// Runs a command, between what a user would do before and after it.
    fn follow(&mut self, command: &str) -> Result<(), String> {
        if UNTIL_THE_END.iter().any(|part| command.contains(part)) {
            self.select_namespace();
            self.waiting.push((command.to_owned(), self.user.start(command)));
            return Ok(());
        }
        if command.contains("can-i") {
            // A new binding becomes effective after a moment.
            let can = || Ok(self.shell(command).is_ok());
            return wait_until(command, LIMIT, can).map_err(|error| format!("{error:#}"));
        }
        if command == "kubectl apply --filename job.yaml" {
            // The job of the tutorial has one engine, that of README.md two.
            let text = fs::read_to_string(self.user.path("job.yaml")).unwrap();
            self.user.write("job.yaml", &text.replace("inference: {replicas: 2}", "inference: {}"));
        }
        if command.starts_with("kubectl delete pod") {
            self.shell("kubectl wait --for=create pod/gsm8k-trainer-0 --timeout=60s")?;
        }
        if command.starts_with("kubectl delete rljob") {
            self.finish()?;
        }
        if command.contains("checkpoints restore") {
            return self.restore(command);
        }
        self.shell(command)?;
        if command.starts_with("kubectl apply") && command.contains("job.yaml") {
            self.shell("kubectl wait --for=condition=Ready rljob/gsm8k --timeout=60s")?;
        }
        Ok(())
    }

    /// Runs `checkpoints restore`, which needs a suspended job, and asks without `--discard`.
    fn restore(&self, command: &str) -> Result<(), String> {
        let was_suspended = self.shell("kubectl rljob suspend gsm8k").is_err();
        self.shell("kubectl wait --for=condition=Suspended rljob/gsm8k --timeout=60s")?;
        match self.shell(command) {
            Err(error) if !command.contains("--discard") => {
                if !error.contains("pass --discard") {
                    return Err(error);
                }
            }
            result => drop(result?),
        }
        if !was_suspended {
            self.shell("kubectl rljob resume gsm8k")?;
        }
        Ok(())
    }

    /// Ends the job, and with it the commands that wait for that.
    fn finish(&mut self) -> Result<(), String> {
        self.pods.run.lock().end = Some("Finished");
        for (command, child) in self.waiting.drain(..) {
            let ended = child.wait_with_output().map_err(|error| error.to_string())?;
            if !ended.status.success() {
                let output = String::from_utf8_lossy(&ended.stderr);
                return Err(format!("{command}: {}: {output}", ended.status));
            }
        }
        Ok(())
    }
}

#[test]
fn commands_on_a_cluster_run_as_printed() {
    let mut reader = Reader::start();
    let mut problems = Vec::new();
    for command in commands_of(Place::ControlPlane) {
        let result = reader.follow(&command.with_names(&reader.namespace.name));
        problems.extend(result.err().map(|error| format!("{}: {error}", command.page)));
    }
    assert!(reader.waiting.is_empty(), "the job has not ended");
    for name in NAMESPACES {
        cluster().kubectl().run(&["delete", "namespace", name, "--wait=false"]).unwrap();
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
