//! Commands and YAML of the documents: parsed by the program that they name.
//!
//! Arguments of `rljob`, `make` and `helm` are parsed, and kubectl parses its own, which runs
//! nothing with `--help`. Not covered are the tools in [`OTHER_PROGRAMS`], most of which are absent
//! where tests run, and plugins of kubectl other than `rljob`. The integration test
//! `documents::commands` lists which tests run the commands, and why others do not run.
//!
//! Helm renders the chart with blocks of values. Objects of other programs are read by the tests in
//! [`OTHER_OBJECTS`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::Helm;
use rljob_tests::documents::{self, Block};
use rljob_tests::files::{helm, kubernetes, required};
use serde_json::{Value, json};

use super::program::parser;
use crate::validate::test_support::{MINIMAL, merge};
use crate::validate::{Policy, parse_jobs, validate};

/// Programs whose arguments no test of this file reads.
const OTHER_PROGRAMS: [&str; 21] = [
    "podman",
    "skopeo",
    "cosign",
    "syft",
    "kubeconform",
    "cargo",
    "pip",
    "python3",
    "tensorboard",
    "ln",
    "chmod",
    "echo",
    "mkdir",
    "printf",
    "export",
    "jobs",
    "wait",
    "set",
    "for",
    "do",
    "done",
];
/// Parts of a job that name exactly one of several things: an example replaces them.
const UNIONS: [&str; 4] =
    ["/spec/algorithm", "/spec/model", "/spec/storage", "/spec/dataset/train"];
/// Versions of objects that are not RLJobs, with the integration test that reads all of their
/// blocks.
const OTHER_OBJECTS: [(&str, &str); 5] = [
    ("v1", "control_plane::readme"),
    ("networking.k8s.io/v1", "control_plane::readme"),
    ("kustomize.config.k8s.io/v1beta1", "control_plane::releases"),
    ("monitoring.coreos.com/v1", "alerts"),
    ("config.kueue.x-k8s.io/v1beta2", "chart::queues"),
];
/// Page whose blocks `validate::rules` checks: together with the data that an algorithm needs.
const ALGORITHMS: &str = "docs/algorithms.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Code blocks of a language in README.md and in all pages below docs/ and charts/.
fn blocks(language: &str) -> Vec<Block> {
    let found = documents::blocks(&["docs", "charts"], language).unwrap();
    assert!(found.len() > 10, "{}", found.len());
    found
}

/// The commands of a shell block, as words. A command ends also at an operator of the shell.
fn commands(block: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for command in documents::commands(block) {
        let words = shlex::split(&command.replace("\\\n", " ")).unwrap();
        let separated = words.split(|word| ["|", "||", "&&", "&", ";"].contains(&word.as_str()));
        found.extend(separated.map(arguments).filter(|command| !command.is_empty()));
    }
    found
}

/// A command without assignments and redirections; a substitution is replaced by its command.
fn arguments(words: &[String]) -> Vec<String> {
    let is_name = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let mut kept: Vec<String> = Vec::new();
    for word in words {
        // `source <(rljob completion bash)`, `archive=$(echo …)`
        if let Some((_, program)) = word.split_once("<(").or_else(|| word.split_once("$(")) {
            kept = vec![program.to_owned()];
        } else if word.starts_with('>') {
            break;
        } else if !kept.is_empty() || !word.split_once('=').is_some_and(|(name, _)| is_name(name)) {
            kept.push(word.trim_end_matches([';', ')']).to_owned());
        }
    }
    kept
}

fn parse_rljob(is_plugin: bool, arguments: &[&str]) -> Result<(), String> {
    let words = ["rljob"].iter().chain(arguments);
    parser(is_plugin).try_get_matches_from(words).map(|_| ()).map_err(|error| error.to_string())
}

/// Targets of the Makefile.
fn parse_make(arguments: &[&str]) -> Result<(), String> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let is_target = |word: &&&str| makefile.contains(&format!("\n{word}:"));
    let targets = arguments.iter().filter(|word| !word.contains('='));
    let unknown: Vec<_> = targets.filter(|word| !is_target(word)).collect();
    if unknown.is_empty() { Ok(()) } else { Err(format!("no targets {unknown:?}")) }
}

/// Whether kubectl accepts the arguments, which it parses before it prints its help.
fn parse_kubectl(kubectl: &Path, arguments: &[&str]) -> Result<(), String> {
    let own: Vec<&str> = arguments.iter().copied().take_while(|word| *word != "--").collect();
    let is_global = own.first() == Some(&"--namespace");
    let Some(command) = own.get(if is_global { 2 } else { 0 }) else { return Ok(()) };
    if *command == "krew" {
        return Ok(());
    }
    let answer = Command::new(kubectl).args(&own).arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&answer.stdout);
    // Help about an unknown command is that of kubectl.
    if answer.status.success() && text.contains(&format!("\n  kubectl {command}")) {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&answer.stderr).into_owned() + &text)
    }
}

fn chart_values() -> Value {
    let text = fs::read_to_string(root().join("charts/rljob/values.yaml")).unwrap();
    serde_yaml::from_str(&text).unwrap()
}

/// Whether values.yaml has a key, or an open object such as labels that may contain it.
fn has_value(values: &Value, path: &str) -> bool {
    match path.split_once('.') {
        _ if values.as_object().is_some_and(serde_json::Map::is_empty) => true,
        Some((key, rest)) => values.get(key).is_some_and(|value| has_value(value, rest)),
        None => values.get(path).is_some(),
    }
}

/// Values that a helm command sets.
fn parse_helm(arguments: &[&str]) -> Result<(), String> {
    let values = chart_values();
    let set = arguments.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1]);
    let keys = set.filter_map(|value| value.split_once('=').map(|(key, _)| key));
    let unknown: Vec<&str> = keys.filter(|key| !has_value(&values, key)).collect();
    if unknown.is_empty() { Ok(()) } else { Err(format!("the chart has no values {unknown:?}")) }
}

#[test]
fn commands_of_the_documents_are_accepted() {
    let kubectl = required(kubernetes("kubectl"));
    let (mut problems, mut checked) = (Vec::new(), 0);
    for Block { page, text: block } in blocks("sh") {
        for command in commands(&block) {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let result = match words.as_slice() {
                ["rljob", rest @ ..] => parse_rljob(false, rest),
                ["kubectl", "rljob", rest @ ..] => parse_rljob(true, rest),
                ["kubectl", rest @ ..] => match &kubectl {
                    Some(kubectl) => parse_kubectl(kubectl, rest),
                    None => continue,
                },
                ["make", rest @ ..] => parse_make(rest),
                ["helm", rest @ ..] => parse_helm(rest),
                [program, ..] if OTHER_PROGRAMS.contains(program) => continue,
                _ => Err("is of a program that no test reads".to_owned()),
            };
            checked += 1;
            problems.extend(result.err().map(|error| format!("{page}: {words:?}: {error}")));
        }
    }
    assert_eq!(problems, Vec::<String>::new());
    assert!(checked > 60, "{checked}");
}

/// Problems of a file with RLJobs, as `rljob validate` finds them.
fn problems_of(text: &str) -> Option<String> {
    let jobs = match parse_jobs(text) {
        Ok(jobs) => jobs,
        Err(error) => return Some(error.to_string()),
    };
    jobs.iter().find_map(|job| validate(job, Policy::LOCAL).err()).map(|error| error.to_string())
}

/// Problems of parts of a job that is otherwise minimal.
fn problems_of_parts(parts: &Value) -> Option<String> {
    let mut job: Value = serde_yaml::from_str(MINIMAL).unwrap();
    for union in UNIONS.iter().filter(|union| parts.pointer(union).is_some()) {
        *job.pointer_mut(union).unwrap() = json!({});
    }
    merge(&mut job, parts);
    problems_of(&job.to_string())
}

/// Helm's error when it renders the chart with a block of values.
fn problems_of_values(values: &str) -> Option<String> {
    let template = ["template", "rljob", &Helm::chart(), "--values=-"];
    let helm = Helm::offline("rljob-system").unwrap();
    helm.run_with_input(&template, values).err().map(|error| format!("{error:#}"))
}

/// Problems of an object that is not an RLJob.
fn problems_of_object(version: &str) -> Option<String> {
    let is_read = OTHER_OBJECTS.iter().any(|(known, _)| *known == version);
    (!is_read).then(|| format!("no test reads objects of {version}"))
}

#[test]
fn yaml_of_the_documents_is_valid() {
    let crd = serde_json::to_value(rljob_crds::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"]["properties"];
    let has_helm = required(helm()).is_some();
    let (mut problems, mut jobs, mut values) = (Vec::new(), 0, 0);
    let others = blocks("yaml").into_iter().filter(|block| block.page != ALGORITHMS);
    for Block { page, text: block } in others {
        let found = if block.contains("apiVersion: rljob.dev") {
            jobs += 1;
            problems_of(&block)
        } else {
            let value: Value = serde_yaml::from_str(&block).unwrap();
            let keys = || value.as_object().unwrap().keys();
            if let Some(version) = value["apiVersion"].as_str() {
                problems_of_object(version)
            } else if keys().all(|key| ["metadata", "spec"].contains(&key.as_str())) {
                problems_of_parts(&value)
            } else if keys().all(|key| !spec[key].is_null()) {
                problems_of_parts(&json!({ "spec": value }))
            } else {
                values += 1;
                has_helm.then(|| problems_of_values(&block)).flatten()
            }
        };
        problems.extend(found.map(|error| format!("{page}: {error}: {block}")));
    }
    assert_eq!(problems, Vec::<String>::new());
    assert!(jobs > 2 && values > 3, "{jobs} {values}");
}
