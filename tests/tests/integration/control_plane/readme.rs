//! The job of README.md and the samples are accepted unchanged, by the API server with strict
//! field validation and by `rljob validate`.

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
