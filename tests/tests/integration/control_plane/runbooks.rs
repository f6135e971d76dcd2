//! Commands of the documents that read a cluster, run on a job: `kubectl get` and `describe`.
//!
//! Not run here: `logs` and `exec`, which need a kubelet, and commands that change a cluster. The
//! tests of `releases` run those of install.md and upgrades.md, those of `gitops` the waits, the
//! patch of Argo CD and the check of pull requests in gitops.md. Other commands, such as those of
//! cli.md, are only parsed, by the unit test of the documents.

use std::process::Command;

use rljob_tests::files::kubernetes;
use rljob_tests::process::run;

use super::cluster;
use super::operator::{Operator, namespace_with, wait_for_pods};
use crate::documents::PAGES;
use rljob_tests::documents::{Block, blocks};

/// Objects that the job of the test does not have.
const ABSENT: [&str; 1] = ["persistentvolumeclaim CLAIM"];

/// Commands of shell blocks that read, by page.
fn commands() -> Vec<(String, String)> {
    let reads = |line: &&str| {
        let mut words = line.split(' ').skip_while(|word| *word != "kubectl").skip(1);
        let is_flag =
            |word: &str| word.starts_with('-') || ["rljob-system", "NAMESPACE"].contains(&word);
        let first = words.find(|word| !is_flag(word));
        line.starts_with("kubectl ")
            && matches!(first, Some("get" | "describe"))
            && !ABSENT.iter().any(|absent| line.contains(absent))
    };
    let mut commands = Vec::new();
    for Block { page, text } in blocks(&PAGES, "sh").unwrap() {
        let text = text.replace("\\\n ", "");
        commands.extend(text.lines().filter(reads).map(|line| (page.clone(), line.to_owned())));
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
