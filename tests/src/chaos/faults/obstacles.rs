//! Obstacles that keep pods from running: an image that cannot be pulled, a quota, an admission
//! policy. The job's status must name the cause while the obstacle exists, and not be stalled
//! afterwards.

use std::time::Duration;

use anyhow::{Result, bail};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fault::Fault;
use crate::chaos::expectations::{expect, is_stalled, messages};
use crate::chaos::testbed::{IMAGE, Testbed};
use crate::process::wait_until;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("image", "not in a registry", image_missing).checking(),
    Fault::new("admission", "denied by a quota", denied_by_quota).checking(),
    Fault::new("admission", "denied by a policy", denied_by_policy).checking(),
];

/// Time limit of a cause in the status. Events are read every 10 s.
const SHOWN: Duration = Duration::from_secs(60);
/// Time limit of an obstacle's effect, and of its removal.
const EFFECT: Duration = Duration::from_secs(60);
/// Time after the obstacle in which its last event counts as the cause of another missing pod.
const LAST_EVENT: Duration = Duration::from_secs(3);
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Objects that are deleted on drop.
struct Objects<'a> {
    testbed: &'a Testbed,
    paths: Vec<String>,
}

impl<'a> Objects<'a> {
    fn create(testbed: &'a Testbed, objects: &[(String, Value)]) -> Result<Self> {
        let mut created = Self { testbed, paths: Vec::new() };
        for (path, object) in objects {
            testbed.api.create(path, object)?;
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            created.paths.push(format!("{path}/{name}"));
        }
        Ok(created)
    }
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            let deleted = wait_until("an obstacle to be deleted", EFFECT, || {
                self.testbed.api.delete(path, &json!({})).map(|_| true)
            });
            if let Err(error) = deleted {
                eprintln!("chaos: {error:#}");
            }
        }
    }
}

/// Removes the image from the nodes; they cannot reach its registry.
fn image_missing(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let _stall = testbed.expect_stall();
    let hidden = testbed.cluster.hide_image(IMAGE)?;
    let causes = ["ErrImagePull", "ImagePullBackOff"];
    let result = deletes_pod(testbed, &causes, random);
    drop(hidden);
    recovers(testbed, &causes, result)
}

/// A name that no event about an earlier obstacle has.
fn unique_name(random: &mut ChaCha8Rng) -> String {
    format!("chaos-{:08x}", random.random::<u32>())
}

fn denied_by_quota(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let name = unique_name(random);
    let quota = json!({"metadata": {"name": name}, "spec": {"hard": {"pods": "0"}}});
    let path = testbed.path("api/v1", "resourcequotas");
    denied(testbed, &[(path, quota)], &format!("exceeded quota: {name}"), random)
}

fn denied_by_policy(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let name = unique_name(random);
    let message = format!("{name} admits no pods");
    let pods = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    });
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [pods]},
            "validations": [{"expression": "false", "message": message}],
        },
    });
    let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": testbed.namespace()}});
    let binding = json!({
        "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": namespace},
        },
    });
    let objects = [
        (format!("{ADMISSION}/validatingadmissionpolicies"), policy),
        (format!("{ADMISSION}/validatingadmissionpolicybindings"), binding),
    ];
    denied(testbed, &objects, &message, random)
}

/// Deletes a pod while its successor is not admitted.
fn denied(
    testbed: &Testbed,
    obstacle: &[(String, Value)],
    cause: &str,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    let _stall = testbed.expect_stall();
    let objects = Objects::create(testbed, obstacle)?;
    let pod = json!({
        "metadata": {"name": "any"}, "spec": {"containers": [{"name": "any", "image": "any"}]},
    });
    let pods = testbed.path("api/v1", "pods?dryRun=All");
    let is_rejected = || {
        let created = testbed.api.create(&pods, &pod);
        created.is_err_and(|error| format!("{error:#}").contains(cause))
    };
    wait_until("pods to be rejected", EFFECT, || Ok(is_rejected()))?;
    let result = deletes_pod(testbed, &[cause], random);
    let is_recorded = testbed.api.get(&testbed.path("api/v1", "events")).map(|events| {
        let mut events = events["items"].as_array().into_iter().flatten();
        events.any(|event| event["message"].as_str().is_some_and(|text| text.contains(cause)))
    });
    drop(objects);
    // API servers apply a deleted policy for a moment: a creation that fails then is retried late.
    wait_until("pods to be admitted", EFFECT, || Ok(!is_rejected()))?;
    recovers(testbed, &[cause], Ok(()))?;
    // The StatefulSet controller sends at most 25 events about an object, then one each 5 minutes.
    if result.is_err() && !is_recorded? {
        bail!("Kubernetes has no event about {cause:?}");
    }
    result
}

/// Deletes a pod whose successor cannot run, and waits for one of these causes in the status.
fn deletes_pod(testbed: &Testbed, causes: &[&str], random: &mut ChaCha8Rng) -> Result<()> {
    const ROLES: [&str; 3] = ["coordinator", "trainer", "inference"];
    let pod = testbed.pod(ROLES[random.random_range(0..ROLES.len())], random)?;
    testbed.delete_pod(&pod, random.random_range(0..=2))?;
    expect(testbed, &format!("{causes:?} of {pod}"), SHOWN, |job| names_one(job, causes))
}

fn names_one(job: &Value, causes: &[&str]) -> bool {
    messages(job).any(|message| causes.iter().any(|cause| message.contains(cause)))
}

/// Waits until the job is not stalled and names none of the causes. `result` is that of the fault
/// before it was reverted.
fn recovers(testbed: &Testbed, causes: &[&str], result: Result<()>) -> Result<()> {
    wait_until("the StatefulSets to be changed", EFFECT, || {
        retry_creations(testbed).map(|()| true)
    })?;
    let recovered = expect(testbed, &format!("the end of {causes:?}"), EFFECT, |job| {
        !is_stalled(job) && !names_one(job, causes)
    });
    // The status may name the last event about a pod that is missing now.
    std::thread::sleep(LAST_EVENT);
    result.and(recovered)
}

/// Changes the StatefulSets: their controller waits up to 1000 s between two attempts to create a
/// pod, unless they change.
fn retry_creations(testbed: &Testbed) -> Result<()> {
    let sets = testbed.path("apis/apps/v1", "statefulsets");
    for set in testbed.api.get(&sets)?["items"].as_array().into_iter().flatten() {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        let change = set["metadata"]["resourceVersion"].clone();
        let patch = json!({"metadata": {"annotations": {"chaos": change}}});
        testbed.api.patch(&format!("{sets}/{name}"), &patch)?;
    }
    Ok(())
}
