//! Subcommands of `rljob` except `run`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::ResourceExt;
use rljob_crds::RLJob;

use crate::validate::{Problem, parse_jobs, warnings};

mod logs;
mod render;
mod report;
mod status;
mod with_parent;

pub use logs::{LogsArgs, logs};
pub use render::{RenderArgs, render};
pub use report::{ReportArgs, report};
pub use status::{StatusArgs, status};
pub use with_parent::{WithParentArgs, with_parent};

/// Checks job files and reports all problems.
#[derive(clap::Args, Debug)]
pub struct ValidateArgs {
    /// Job file, or `-` for standard input. Repeatable.
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Checks all files; returns one line for each valid job, after its warnings.
///
/// # Errors
/// All problems, one per line.
pub fn validate(arguments: &ValidateArgs) -> anyhow::Result<String> {
    let (mut valid, mut problems) = (Vec::new(), Vec::new());
    for file in &arguments.files {
        match read_jobs(file) {
            Ok(jobs) => {
                for job in &jobs {
                    let (file, name) = (file.display(), job.name_any());
                    valid.extend(
                        warnings(&job.spec)
                            .iter()
                            .map(|warning| format!("{file}: warning: rljob {name}: {warning}")),
                    );
                    valid.push(format!("{file}: rljob {name} is valid"));
                }
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if problems.is_empty() {
        Ok(valid.join("\n"))
    } else {
        Err(anyhow::anyhow!(problems.join("\n")))
    }
}

/// Returns the CRD as YAML.
///
/// # Errors
/// Serialization fails.
pub fn crd() -> anyhow::Result<String> {
    Ok(serde_yaml::to_string(&rljob_crds::crd())?)
}

/// Reads the jobs of a file; `-` is standard input. Errors have one line per problem.
fn read_jobs(file: &Path) -> anyhow::Result<Vec<RLJob>> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("failed to read {}", file.display()))?;
    let lines = |problems: &[Problem]| {
        problems
            .iter()
            .map(|problem| format!("{}: {problem}", file.display()))
            .collect::<Vec<_>>()
            .join("\n")
    };
    parse_jobs(&text).map_err(|invalid| anyhow::anyhow!(lines(&invalid.problems)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::MINIMAL;

    #[test]
    fn problems_of_all_files_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (good, bad, missing) = (
            file("good", MINIMAL),
            file("bad", &MINIMAL.replace("steps: 10", "steps: 0")),
            folder.path().join("missing"),
        );
        let validate = |files: &[&PathBuf]| {
            validate(&ValidateArgs { files: files.iter().map(|&path| path.clone()).collect() })
                .map_err(|error| error.to_string())
        };
        assert_eq!(validate(&[&good]), Ok(format!("{}: rljob sums is valid", good.display())));
        let problems = [
            format!("failed to read {}: No such file or directory (os error 2)", missing.display()),
            format!("{}: line 12: spec.training.steps: must be at least 1, found 0", bad.display()),
        ];
        assert_eq!(validate(&[&missing, &good, &bad]), Err(problems.join("\n")));
    }
}
