//! The job of README.md and the samples are accepted unchanged, by the API server with strict
//! field validation and by `rljob validate`; objects of other pages by the API server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::{binary, workspace};
use rljob_tests::process::run;

use super::cluster;
use crate::documents::objects_of;
use rljob_tests::documents::blocks_in;

/// Versions of objects that a cluster without other programs knows.
const VERSIONS: [&str; 3] = ["rljob.dev/v1alpha1", "v1", "networking.k8s.io/v1"];

/// Applies a file with strict field validation and validates it.
fn accept(namespace: &Namespace, file: &Path) -> String {
    let name = file.display().to_string();
    let arguments = ["apply", "--validate=strict", "--filename", name.as_str()];
    let applied = namespace.kubectl.run(&arguments).unwrap();
    run(Command::new(binary("rljob").unwrap()).args(["validate", "--file"]).arg(file)).unwrap();
    applied
}

#[test]
fn the_job_of_the_readme_is_accepted_as_printed() {
    let namespace = Namespace::create(cluster(), "readme").unwrap();
    let text = fs::read_to_string(workspace().join("README.md")).unwrap();
    let mut jobs = blocks_in(&text, "yaml");
    jobs.retain(|block| block.contains("kind: RLJob"));
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let folder = tempfile::tempdir().unwrap();
    for job in jobs {
        let file = folder.path().join("job.yaml");
        fs::write(&file, &job).unwrap();
        assert_eq!(accept(&namespace, &file), "rljob.rljob.dev/gsm8k created\n");
    }
}

#[test]
fn objects_of_the_documents_are_accepted_as_printed() {
    let namespace = Namespace::create(cluster(), "documents").unwrap();
    let objects: Vec<String> = VERSIONS.iter().flat_map(|version| objects_of(version)).collect();
    assert!(objects.len() >= 4, "{objects:?}");
    let folder = tempfile::tempdir().unwrap();
    for object in objects {
        let file = folder.path().join("object.yaml");
        // Objects of fixed namespaces are created in that of the test.
        fs::write(&file, object.replace(", namespace: team-a", "")).unwrap();
        let name = file.display().to_string();
        let arguments =
            ["apply", "--dry-run=server", "--validate=strict", "--filename", name.as_str()];
        let applied = namespace.kubectl.run(&arguments).unwrap();
        assert!(applied.ends_with(" created (server dry run)\n"), "{object}: {applied}");
    }
}

#[test]
fn every_sample_is_accepted_unchanged() {
    let namespace = Namespace::create(cluster(), "samples").unwrap();
    let files_of = |folder: &str| {
        let entries = fs::read_dir(workspace().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>()
    };
    let mut files = files_of("manifests/samples");
    files.extend(files_of("manifests/samples/algorithms"));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    assert!(files.len() >= 20, "{files:?}");
    for file in files {
        let created = accept(&namespace, &file);
        assert!(created.lines().all(|line| line.ends_with(" created")), "{created}");
    }
}
