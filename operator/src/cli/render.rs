//! `rljob render`: the objects that the operator would make of a job, as YAML. Tokens are shown as
//! placeholders.

use std::path::PathBuf;

use serde::Serialize;

use crate::decide::WantedRoles;
use crate::desired::{Pinned, Resources, Settings, Tokens, build};
use crate::install::DEFAULT_IMAGE;
use crate::validate::{Policy, ValidatedJob, validate};

/// Prints the objects that the operator would make of a job.
#[derive(clap::Args, Debug)]
pub struct RenderArgs {
    /// The job file, or `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Namespace of jobs that name none.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Image of the roles that name none; the operator takes its own.
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
}

/// Renders every job of the file.
///
/// # Errors
/// A job that is not valid, or an object that cannot be written as YAML.
pub fn render(arguments: &RenderArgs) -> anyhow::Result<String> {
    let settings = Settings { image: arguments.image.clone() };
    let mut text = String::new();
    for mut job in super::read_jobs(&arguments.file)? {
        job.metadata.namespace.get_or_insert_with(|| arguments.namespace.clone());
        let job: ValidatedJob = validate(&job, Policy::LOCAL)?;
        let resources = build(
            &job,
            if job.spec.suspend { WantedRoles::Nothing } else { WantedRoles::Everything },
            &settings,
            &Tokens::placeholders(),
            &Pinned::default(),
        );
        append_all(&mut text, &resources)?;
    }
    Ok(text)
}

fn append_all(text: &mut String, resources: &Resources) -> anyhow::Result<()> {
    let Resources {
        config_map,
        secret,
        network_policy,
        disruption_budget,
        services,
        stateful_sets,
    } = resources;
    append(text, secret)?;
    append(text, config_map)?;
    append(text, network_policy)?;
    append(text, disruption_budget)?;
    for service in services {
        append(text, service)?;
    }
    for stateful_set in stateful_sets {
        append(text, stateful_set)?;
    }
    Ok(())
}

fn append(text: &mut String, object: &impl Serialize) -> anyhow::Result<()> {
    text.push_str("---\n");
    text.push_str(&serde_yaml::to_string(object)?);
    Ok(())
}
