//! The job of README.md is accepted as printed: by the API server with strict field validation, and
//! by `rljob validate`.

use std::fs;
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

#[test]
fn the_job_of_the_readme_is_accepted_as_printed() {
    let namespace = Namespace::create(cluster(), "readme").unwrap();
    let jobs = jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let folder = tempfile::tempdir().unwrap();
    for job in jobs {
        let arguments = ["apply", "--validate=strict", "--filename=-"];
        let applied = namespace.kubectl.run_with_input(&arguments, &job).unwrap();
        assert_eq!(applied, "rljob.rljob.dev/gsm8k created\n");
        let file = folder.path().join("job.yaml");
        fs::write(&file, &job).unwrap();
        run(Command::new(binary("rljob").unwrap()).args(["validate", "--file"]).arg(&file))
            .unwrap();
    }
}
