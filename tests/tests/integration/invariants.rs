//! Invariants of ARCHITECTURE.md that a program can check: dependencies between crates and files,
//! forbidden APIs, language.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::files::workspace;
use rljob_tests::process::run;

mod imports;
mod language;
mod lints;
mod samples;

/// Names of all crates that a member depends on, and its own name; without build and test
/// dependencies.
fn crates_of(member: &str) -> BTreeSet<String> {
    let arguments = [
        "tree",
        "--locked",
        "--offline",
        "--package",
        member,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ];
    let text = run(Command::new(env!("CARGO")).args(arguments).current_dir(workspace())).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(ToOwned::to_owned).collect()
}

/// Source files below a folder with one of the extensions, without build outputs.
fn sources(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let skipped =
            ["target", ".git", ".libtorch", "runs"].iter().any(|skipped| name == *skipped);
        if entry.file_type().unwrap().is_dir() && !skipped {
            found.extend(sources(&path, extensions));
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted))
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Lines of code, without comments, that contain one of the words, as `file:line: word`.
fn uses(files: &[PathBuf], words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let place = file.strip_prefix(workspace()).unwrap().display();
            found.extend(
                words
                    .iter()
                    .filter(|word| code.contains(*word))
                    .map(|word| format!("{place}:{}: {word}", index + 1)),
            );
        }
    }
    found
}

fn members() -> Vec<String> {
    let text = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let list = text.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

#[test]
fn api_types_depend_on_no_member_client_or_tensor_library() {
    let crates = crates_of("rljob-crds");
    let forbidden = |name: &&String| {
        (name.starts_with("rljob-") && *name != "rljob-crds")
            || ["tokio", "kube-client", "tch", "torch-sys"].contains(&name.as_str())
    };
    assert_eq!(crates.iter().filter(forbidden).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn operator_and_coordinator_never_link_libtorch() {
    for member in ["rljob-operator", "rljob-coordinator"] {
        let crates = crates_of(member);
        let forbidden = |name: &&String| {
            ["tch", "torch-sys", "rljob-collective", "rljob-learner", "rljob-engine"]
                .contains(&name.as_str())
        };
        assert_eq!(
            crates.iter().filter(forbidden).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{member}"
        );
    }
}

#[test]
fn the_coordinator_does_not_depend_on_the_kubernetes_client() {
    let crates = crates_of("rljob-coordinator");
    assert!(!crates.contains("kube-client"), "rljob-coordinator depends on kube-client");
}

#[test]
fn pure_operator_modules_use_no_client_clock_or_randomness() {
    let words = [
        "kube::Client",
        "kube::client",
        "kube::Api",
        "Api<",
        "Api::",
        "SystemTime",
        "Instant",
        "Timestamp::now",
        "Zoned::now",
        "Utc::now",
        "rand::",
        "getrandom",
        "std::fs",
        "std::env",
        "tokio::",
        "Mutex",
    ];
    for module in ["validate", "decide", "status", "desired", "pods", "queue"] {
        let files = sources(&workspace().join("operator/src").join(module), &["rs"]);
        let code: Vec<PathBuf> =
            files.into_iter().filter(|file| !file.ends_with("tests.rs")).collect();
        assert!(!code.is_empty(), "operator/src/{module} has no code");
        assert_eq!(uses(&code, &words), Vec::<String>::new());
    }
}

#[test]
fn decide_does_not_use_cluster_objects() {
    let files = sources(&workspace().join("operator/src/decide"), &["rs"]);
    assert_eq!(
        uses(&files, &["k8s_openapi", "kube::", "Pod", "StatefulSet"]),
        Vec::<String>::new()
    );
}

#[test]
fn the_model_does_not_use_collectives() {
    let files = sources(&workspace().join("trainer/learner/src/model"), &["rs"]);
    assert!(!files.is_empty(), "trainer/learner/src/model has no code");
    assert_eq!(
        uses(&files, &["rljob_collective", "crate::ranks", "crate::fsdp"]),
        Vec::<String>::new()
    );
}

#[test]
fn objectives_use_neither_io_nor_collectives() {
    let files = sources(&workspace().join("trainer/learner/src/objective"), &["rs"]);
    assert!(!files.is_empty(), "trainer/learner/src/objective has no code");
    assert_eq!(
        uses(
            &files,
            &["std::fs", "std::net", "reqwest", "rljob_collective", "all_reduce", "broadcast"]
        ),
        Vec::<String>::new()
    );
}

#[test]
fn unsafe_code_and_cpp_exist_only_in_collective_and_kernels() {
    let root = workspace();
    let own = ["trainer/collective", "trainer/kernels"].map(|folder| root.join(folder));
    let outside = |file: &PathBuf| own.iter().all(|folder| !file.starts_with(folder));
    let rust: Vec<PathBuf> = sources(&root, &["rs"]).into_iter().filter(outside).collect();
    let words = [
        concat!("uns", "afe {"),
        concat!("uns", "afe fn"),
        concat!("uns", "afe impl"),
        concat!("uns", "afe extern"),
        concat!("allow(uns", "afe_code)"),
    ];
    assert_eq!(uses(&rust, &words), Vec::<String>::new());
    let cpp: Vec<PathBuf> =
        sources(&root, &["c", "cc", "cpp", "cu", "h", "hpp"]).into_iter().filter(outside).collect();
    // The sandbox compiles it with a program of a completion: no process of rljob links it.
    assert_eq!(cpp, [root.join("trainer/sandbox/src/harness.cpp")]);
}

#[test]
fn every_source_file_starts_with_a_header() {
    let without_header = |file: &PathBuf| !fs::read_to_string(file).unwrap().starts_with("//!");
    let files: Vec<PathBuf> =
        sources(&workspace(), &["rs"]).into_iter().filter(without_header).collect();
    assert_eq!(files, Vec::<PathBuf>::new());
}

#[test]
fn the_architecture_page_names_every_member() {
    let page = fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let missing: Vec<String> =
        members().into_iter().filter(|member| !page.contains(&format!("`{member}/`"))).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// Link targets, and code spans that start with a top-level folder.
fn paths_in(text: &str) -> Vec<String> {
    let links = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.starts_with("http"));
    let folders = ["charts/", "crds/", "operator/", "trainer/", "manifests/", "tests/", "docs/"];
    let spans = text.split('`').skip(1).step_by(2).filter(|span| {
        folders.iter().any(|folder| span.starts_with(folder)) && !span.contains(' ')
    });
    links.chain(spans).map(ToOwned::to_owned).collect()
}

#[test]
fn paths_in_documents_exist() {
    let root = workspace();
    let mut missing = Vec::new();
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let paths = paths_in(&fs::read_to_string(root.join(page)).unwrap());
        assert!(!paths.is_empty(), "{page} contains no path");
        missing.extend(
            paths
                .into_iter()
                .filter(|path| !root.join(path).exists())
                .map(|path| format!("{page}: {path}")),
        );
    }
    assert_eq!(missing, Vec::<String>::new());
}
