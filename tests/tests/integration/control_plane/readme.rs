//! The job of README.md and the samples are accepted unchanged, by the API server with strict
//! field validation and by `rljob validate`; objects of other pages by the API server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::{binary, workspace};
use rljob_tests::process::run;

use super::cluster;

/// The YAML code blocks of README.md that contain an RLJob.
fn jobs() -> Vec<String> {
    let text = fs::read_to_string(workspace().join("README.md")).unwrap();
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("kind: RLJob")).map(str::to_owned).collect()
}

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
    let jobs = jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let folder = tempfile::tempdir().unwrap();
    for job in jobs {
        let file = folder.path().join("job.yaml");
        fs::write(&file, &job).unwrap();
        assert_eq!(accept(&namespace, &file), "rljob.rljob.dev/gsm8k created\n");
    }
}

/// YAML code blocks of the pages in docs/ with objects that a cluster without
/// other programs knows.
fn objects() -> Vec<String> {
    let docs = workspace().join("docs");
    let entries = fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| path.extension().is_some_and(|found| found == "md"));
    let texts: Vec<String> = pages.map(|page| fs::read_to_string(page).unwrap()).collect();
    let blocks = texts.iter().flat_map(|text| text.split("```yaml\n").skip(1));
    let known = ["apiVersion: rljob.dev/v1alpha1\n", "apiVersion: v1\n"];
    blocks
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| known.iter().any(|version| block.starts_with(version)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn objects_of_the_documents_are_accepted_as_printed() {
    let namespace = Namespace::create(cluster(), "documents").unwrap();
    let objects = objects();
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
