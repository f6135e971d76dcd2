//! `rljob checkpoints restore --cluster`: requests that a suspended RLJob goes back to a
//! checkpoint, by `spec.rollbackTo`. The API server accepts the request only while the job is
//! suspended and its status has the checkpoint.

use anyhow::{bail, ensure};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Patch;
use rljob_crds::RLJob;
use rljob_crds::rollback::RollbackTarget;
use serde_json::json;

use super::job::of_step;
use crate::cli::change;
use crate::cli::connection::Connection;
use crate::cli::job_view::{is_released, outcome};

/// Requests the rollback; returns the lines to print.
///
/// # Errors
/// The job or its checkpoint does not exist, the job is not suspended or cannot be rolled back,
/// something would be discarded without `discard`, or the request fails.
pub async fn restore(
    connection: &Connection,
    name: &str,
    step: u32,
    discard: bool,
) -> anyhow::Result<String> {
    let job = connection.job(name).await?;
    let Some(later) = later(&job, step)? else {
        return Ok(format!(
            "nothing is later than step {step}; RLJob {name} continues there: \
             `kubectl rljob resume {name}`"
        ));
    };
    ensure!(
        discard,
        "a restore of RLJob {name} to step {step} discards {later}: pass --discard to do so; to \
         keep them, start another RLJob with restoreFrom.rljob: {{name: {name}, step: {step}}}"
    );
    let target = RollbackTarget { step, requested_at: Some(Time(now()?)) };
    let patch = Patch::Merge(json!({"spec": {"rollbackTo": target}}));
    let patched = connection.api::<RLJob>().patch(name, &change::parameters(), &patch).await;
    patched.map_err(|error| connection.failed(&format!("restore RLJob {name}"), error))?;
    let done = format!(
        "goes back to step {step} when it resumes, and discards {later}: \
         `kubectl rljob resume {name}`"
    );
    change::answer(&job, &done, "rollbackTo", &["f:spec", "f:rollbackTo"])
}

/// The time in whole seconds, as the API server stores times.
fn now() -> anyhow::Result<Timestamp> {
    Ok(Timestamp::from_second(Timestamp::now().as_second())?)
}

/// What a rollback to a step discards; `None` if nothing is later.
fn later(job: &RLJob, step: u32) -> anyhow::Result<Option<String>> {
    let name = job.name_any();
    let other =
        format!("start another RLJob with restoreFrom.rljob: {{name: {name}, step: {step}}}");
    if let Some(outcome) = outcome(job) {
        bail!("failed to restore RLJob {name}: its run has ended ({}); {other}", outcome.reason);
    }
    ensure!(job.spec.storage.s3.is_none(), "RLJob {name} is in a bucket; {other}");
    ensure!(
        job.spec.suspend && is_released(job),
        "RLJob {name} is not suspended: `kubectl rljob suspend {name}`, then \
         `kubectl wait --for=condition=Suspended rljob/{name}`"
    );
    let checkpoint = of_step(job, Some(step))?;
    let status = job.status.clone().unwrap_or_default();
    let done = status.progress.map_or(step, |progress| progress.step);
    let checkpoints = status.checkpoints.iter().filter(|other| other.step > step).count();
    if done <= step && status.checkpoints.iter().all(|other| other.step <= checkpoint.step) {
        return Ok(None);
    }
    Ok(Some(format!(
        "steps {} to {done} with their samples and evaluations, exports and checkpoints \
         ({checkpoints})",
        step.saturating_add(1)
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::validate::test_support::{MINIMAL, merge};

    fn job(patch: &Value) -> RLJob {
        let mut job: Value = serde_yaml::from_str(MINIMAL).unwrap();
        let suspended = json!({
            "spec": {"suspend": true},
            "status": {
                "conditions": [{
                    "type": "Suspended", "status": "True", "reason": "Suspended", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "progress": {"step": 9, "totalSteps": 12},
                "checkpoints": [
                    {"step": 3, "path": "checkpoints/step-3.attempt-0"},
                    {"step": 6, "path": "checkpoints/step-6.attempt-0"},
                    {"step": 9, "path": "checkpoints/step-9.attempt-0"},
                ],
            },
        });
        merge(&mut job, &suspended);
        merge(&mut job, patch);
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn later_steps_of_a_suspended_job_are_named_and_other_jobs_are_rejected() {
        let of = |patch: Value, step| later(&job(&patch), step).map_err(|error| error.to_string());
        let discarded = of(json!({}), 3).unwrap().unwrap();
        let expected =
            "steps 4 to 9 with their samples and evaluations, exports and checkpoints (2)";
        assert_eq!(discarded, expected);
        assert_eq!(of(json!({}), 9), Ok(None));
        let unknown = of(json!({}), 4).unwrap_err();
        assert!(
            unknown.contains("no complete checkpoint of step 4; complete ones: 3, 6, 9"),
            "{unknown}"
        );
        let active = of(json!({"spec": {"suspend": false}}), 3).unwrap_err();
        assert!(active.contains("is not suspended: `kubectl rljob suspend"), "{active}");
        let draining = of(json!({"status": {"conditions": []}}), 3).unwrap_err();
        assert!(draining.contains("is not suspended: `kubectl rljob suspend"), "{draining}");
        let bucket = json!({"spec": {"storage": {"hostPath": null, "persistentVolumeClaim": null,
            "s3": {"bucket": "runs"}}}});
        let bucket = of(bucket, 3).unwrap_err();
        assert!(
            bucket.contains("is in a bucket; start another RLJob with restoreFrom"),
            "{bucket}"
        );
        let ended = json!({"status": {"conditions": [{
            "type": "Succeeded", "status": "True", "reason": "Completed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let ended = of(ended, 3).unwrap_err();
        assert!(ended.contains("its run has ended (Completed); start another RLJob"), "{ended}");
    }
}
