//! Commands of the documents that read a cluster, run on a job: `kubectl get` and `describe`.
//!
//! Not run: `logs` and `exec`, which need a kubelet, and commands that change a cluster. The tests
//! of `releases`, `gitops` and `command_line` run those of install.md, gitops.md and cli.md, and
//! the unit test of the documents passes the arguments of all to kubectl's parser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::files::{kubernetes, workspace};
use rljob_tests::process::run;

use super::cluster;
use super::operator::{Operator, namespace_with, wait_for_pods};

/// Objects that the job of the test does not have.
const ABSENT: [&str; 1] = ["persistentvolumeclaim CLAIM"];

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Commands of shell blocks that read, by page.
fn commands() -> Vec<(String, String)> {
    let mut found = vec![workspace().join("README.md")];
    pages(&workspace().join("docs"), &mut found);
    found.sort();
    let mut commands = Vec::new();
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let reads = |line: &&str| {
            let mut words = line.split(' ').skip_while(|word| *word != "kubectl").skip(1);
            let is_flag =
                |word: &str| word.starts_with('-') || ["rljob-system", "NAMESPACE"].contains(&word);
            let first = words.find(|word| !is_flag(word));
            line.starts_with("kubectl ")
                && matches!(first, Some("get" | "describe"))
                && !ABSENT.iter().any(|absent| line.contains(absent))
        };
        for block in blocks.map(|block| block.replace("\\\n ", "")) {
            let lines = block.lines().filter(reads);
            commands.extend(lines.map(|line| (page.display().to_string(), line.to_owned())));
        }
    }
    commands
}

#[test]
fn reading_commands_of_the_documents_succeed() {
    let namespace = namespace_with("runbooks", &serde_json::json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let program = kubernetes("kubectl").unwrap();
    let kubectl = format!(
        "kubectl() {{ '{}' --kubeconfig='{}' --namespace='{}' \"$@\"; }}; ",
        program.display(),
        cluster().kubeconfig().display(),
        namespace.name
    );
    let (mut problems, commands) = (Vec::new(), commands());
    for (page, command) in &commands {
        let command = command.replace("NAMESPACE", &namespace.name);
        let command = command.replace("NAME", "sample").replace("gsm8k", "sample");
        if let Err(error) = run(Command::new("bash").args(["-c", &(kubectl.clone() + &command)])) {
            problems.push(format!("{page}: {command}: {error:#}"));
        }
    }
    assert_eq!(problems, Vec::<String>::new());
    assert!(commands.len() > 25, "{}", commands.len());
}
