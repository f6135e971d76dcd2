//! `rljob render`: prints the objects that the operator would create for a job, as YAML. Tokens are
//! placeholders.

use std::path::PathBuf;

use crate::children::children;
use crate::decide::WantedRoles;
use crate::desired::{Pinned, Settings, Tokens, build};
use crate::install::DEFAULT_IMAGE;
use crate::validate::{Policy, ValidatedJob, validate};

/// Prints the objects that the operator would create for a job.
#[derive(clap::Args, Debug)]
pub struct RenderArgs {
    /// Job file, or `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Namespace of jobs without a namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Image of roles without an image; the operator uses its own.
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
}

/// Renders all jobs of the file.
///
/// # Errors
/// A job is invalid, or has paths that pods do not have.
pub fn render(arguments: &RenderArgs) -> anyhow::Result<String> {
    let settings = Settings::new(&arguments.image);
    let mut text = String::new();
    for mut job in super::read_jobs(&arguments.file, &[])? {
        job.metadata.namespace.get_or_insert_with(|| arguments.namespace.clone());
        let job: ValidatedJob = validate(&job, Policy::of_operator(true))?;
        let resources = build(
            &job,
            if job.spec.suspend { WantedRoles::Nothing } else { WantedRoles::Everything },
            &settings,
            &Tokens::placeholders(),
            &Pinned::default(),
        );
        for child in children(&resources) {
            text.push_str("---\n");
            text.push_str(&serde_yaml::to_string(&child.object)?);
        }
    }
    Ok(text)
}
