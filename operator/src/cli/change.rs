//! `rljob suspend`, `resume` and `scale`: one patch of one field of an RLJob, as field manager
//! `rljob-cli`.
//!
//! The patch is a merge patch: it takes the field over from other managers, once. A tool that
//! applies the field again reverts it, so the answer names such tools.

use std::fmt::Write;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rljob_crds::RLJob;
use serde_json::{Value, json};

use super::connection::{Connection, ConnectionArgs};
use super::job_view::outcome;

/// Field manager of the patches. Flux reverts all fields of managers whose names begin with
/// `kubectl`.
const FIELD_MANAGER: &str = "rljob-cli";
/// Annotation with the file of the last client-side apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Suspend an RLJob: it completes its step, writes a checkpoint and deletes its pods.
///
/// Sets `spec.suspend` as field manager `rljob-cli`. A GitOps tool whose source sets the field
/// reverts it: suspend the job there. Needs the permissions to get and patch `rljobs`.
#[derive(clap::Args, Debug)]
pub struct SuspendArgs {
    /// Name of the RLJob.
    pub name: String,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Resume a suspended RLJob from its newest checkpoint.
///
/// Sets `spec.suspend` as field manager `rljob-cli`. A GitOps tool whose source sets the field
/// reverts it: resume the job there. Needs the permissions to get and patch `rljobs`.
#[derive(clap::Args, Debug)]
pub struct ResumeArgs {
    /// Name of the RLJob.
    pub name: String,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Set the number of inference engines of an RLJob, through its scale subresource.
///
/// Sets `spec.inference.replicas` as field manager `rljob-cli`. A GitOps tool whose source sets
/// the field, or an autoscaler, reverts it. Needs the permissions to get `rljobs` and to patch
/// `rljobs/scale`.
#[derive(clap::Args, Debug)]
pub struct ScaleArgs {
    /// Name of the RLJob.
    pub name: String,
    /// Number of engines.
    #[arg(long, value_name = "ENGINES")]
    pub replicas: u32,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Suspends a job; returns the answer.
///
/// # Errors
/// It does not exist, is suspended or has ended, or the request fails.
pub async fn suspend(arguments: &SuspendArgs) -> anyhow::Result<String> {
    let SuspendArgs { name, connection } = arguments;
    let done = "suspended: it completes its step, writes a checkpoint and deletes its pods";
    set_suspend(name, connection, true, ("suspend", done)).await
}

/// Resumes a job; returns the answer.
///
/// # Errors
/// It does not exist, is not suspended or has ended, or the request fails.
pub async fn resume(arguments: &ResumeArgs) -> anyhow::Result<String> {
    let ResumeArgs { name, connection } = arguments;
    let done = "resumed: it continues from its newest checkpoint";
    set_suspend(name, connection, false, ("resume", done)).await
}

async fn set_suspend(
    name: &str,
    arguments: &ConnectionArgs,
    suspend: bool,
    (verb, done): (&str, &str),
) -> anyhow::Result<String> {
    let connection = Connection::open(arguments).await?;
    let job = unfinished(&connection, name, verb).await?;
    if job.spec.suspend == suspend {
        bail!("RLJob {name} is {} suspended", if suspend { "already" } else { "not" });
    }
    let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
    let patched = connection.api::<RLJob>().patch(name, &parameters(), &patch).await;
    patched.map_err(|error| connection.failed(&format!("{verb} RLJob {name}"), error))?;
    answer(&job, done, "suspend", &["f:spec", "f:suspend"])
}

/// Sets the number of engines; returns the answer.
///
/// # Errors
/// The job does not exist, has this number or has ended, or the request fails.
pub async fn scale(arguments: &ScaleArgs) -> anyhow::Result<String> {
    let ScaleArgs { name, replicas, connection } = arguments;
    let connection = Connection::open(connection).await?;
    let job = unfinished(&connection, name, "scale").await?;
    let before = job.spec.inference.replicas;
    if u32::try_from(before) == Ok(*replicas) {
        bail!("RLJob {name} already has spec.inference.replicas {replicas}");
    }
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let patched = connection.api::<RLJob>().patch_scale(name, &parameters(), &patch).await;
    patched.map_err(|error| connection.failed(&format!("scale RLJob {name}"), error))?;
    let done = format!("scaled from {before} to {replicas} engines");
    let path = ["f:spec", "f:inference", "f:replicas"];
    answer(&job, &done, "inference.replicas", &path)
}

pub(super) fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Gets a job that has not ended.
async fn unfinished(connection: &Connection, name: &str, verb: &str) -> anyhow::Result<RLJob> {
    let job = connection.job(name).await?;
    if let Some(outcome) = outcome(&job) {
        bail!("failed to {verb} RLJob {name}: its run has ended ({})", outcome.reason);
    }
    Ok(job)
}

pub(super) fn answer(
    job: &RLJob,
    done: &str,
    field: &str,
    path: &[&str],
) -> anyhow::Result<String> {
    let mut text = format!("rljob {} {done}", job.name_any());
    for owner in owners(job, path)? {
        let _ = write!(text, "\nwarning: {owner} sets spec.{field} and may revert this");
    }
    Ok(text)
}

/// Other field managers of the field at `path`, which set it again when they apply or scale.
fn owners(job: &RLJob, path: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut owners = Vec::new();
    let is_in_file = is_in_applied_file(job, path);
    for entry in job.managed_fields() {
        let fields = serde_json::to_value(&entry.fields_v1).context("failed to read managers")?;
        let field = path.iter().try_fold(&fields, |value: &Value, key| value.get(key));
        // The creator of an object also manages the defaults of the CRD, which its file may lack.
        let sets = entry.operation.as_deref() == Some("Apply")
            || entry.subresource.is_some()
            || is_in_file;
        let other = entry.manager.clone().filter(|manager| manager != FIELD_MANAGER);
        owners.extend(other.filter(|_| field.is_some() && sets));
    }
    Ok(owners)
}

/// Whether the file of the last client-side apply has the field at `path`.
fn is_in_applied_file(job: &RLJob, path: &[&str]) -> bool {
    let applied = job.annotations().get(LAST_APPLIED);
    let applied = applied.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut names = path.iter().map(|key| key.trim_start_matches("f:"));
    applied.is_some_and(|applied| names.try_fold(&applied, |value, name| value.get(name)).is_some())
}
