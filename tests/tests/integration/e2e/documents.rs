//! Commands of the documents that need a kubelet, run as printed on a job in pods. The others of a
//! cluster run in `control_plane::documents`.

use std::fs;
use std::process::Child;

use rljob_tests::Namespace;
use serde_json::json;

use super::{NODES, Run, cluster};
use crate::documents::commands::{Place, commands_of};
use crate::documents::user::User;

/// Program of the reward.
const ONE: &str = r#"while read -r line; do
    [[ $line =~ \"id\":\ *([0-9]+) ]]
    echo "{\"id\": ${BASH_REMATCH[1]}, \"reward\": 1}"
done
"#;
/// The step of the checkpoint that commands name.
const STEP: u64 = 40;

/// Runs a command, or starts it if it ends with the job.
fn follow(user: &User, command: &str, waiting: &mut Vec<(String, Child)>) -> Result<(), String> {
    if command.contains("--follow") {
        waiting.push((command.to_owned(), user.start(command)));
        return Ok(());
    }
    if command.contains(" dashboard ") {
        return user.serve(command);
    }
    let output = user.shell(command)?;
    let may_be_silent = command.contains("rewards") || command.contains("report");
    let is_empty = output.trim().is_empty() && !may_be_silent;
    if is_empty { Err(format!("{command} prints nothing")) } else { Ok(()) }
}

#[test]
fn commands_that_read_pods_run_as_printed() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "reader").unwrap();
    let data = cluster().shared_folder("data-gsm8k").unwrap();
    fs::write(data.join("one.sh"), ONE).unwrap();
    let run = Run::start(cluster(), &namespace, include_str!("documents.yaml"), "gsm8k");
    run.wait_for_steps(3);
    // The lines of a second attempt.
    run.kill_learner();
    run.wait_for_checkpoint(STEP);
    let user = User::new();
    user.use_namespace(cluster().kubeconfig(), &namespace.name);
    user.shell("ln -s ../../bin/rljob .local/bin/kubectl-rljob").unwrap();
    let (mut problems, mut waiting) = (Vec::new(), Vec::new());
    for command in commands_of(Place::Nodes) {
        let text = command.with_names(&namespace.name);
        let result = follow(&user, &text, &mut waiting);
        problems.extend(result.err().map(|error| format!("{}: {error}", command.page)));
    }
    let end = json!({"spec": {"activeDeadlineSeconds": 1}}).to_string();
    namespace.kubectl.run(&["patch", "rljob/gsm8k", "--type=merge", "--patch", &end]).unwrap();
    for (command, child) in waiting {
        let ended = child.wait_with_output().unwrap();
        if !ended.status.success() {
            problems.push(format!("{command}: {}", String::from_utf8_lossy(&ended.stderr)));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
