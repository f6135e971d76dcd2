//! Permissions for the objects of a job, and for the Lease of an operator that leads.

use rljob_tests::process::wait_until;
use serde_json::json;

use super::super::operator::{LIMIT, Operator};
use super::installation::Installation;

/// API groups and resources of the children.
const CHILDREN: [(&str, &str); 6] = [
    ("apps", "statefulsets"),
    ("", "services"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("", "configmaps"),
    ("", "secrets"),
];

/// Starts jobs, renews the Lease, and deletes the children of jobs, each time without one
/// permission.
pub(super) fn remove(installation: &Installation, operator: &Operator) {
    for (group, resource) in CHILDREN {
        let of_jobs = installation.permissions(group, resource, &["get", "create", "patch"]);
        for permission in of_jobs.into_iter().filter(|permission| !permission.role.is_of_operator())
        {
            installation.create_job_without(permission, operator, &json!({}));
        }
    }
    for resource in ["rljobs/status", "rljobs/finalizers"] {
        for permission in installation.permissions("rljob.dev", resource, &["update"]) {
            installation.create_job_without(permission, operator, &json!({}));
        }
    }
    for permission in installation.permissions("coordination.k8s.io", "leases", &["update"]) {
        installation.without(&[permission], || operator);
    }
    remove_deletions(installation, operator);
}

/// Ends a job for each kind of children, and then lets it expire.
fn remove_deletions(installation: &Installation, operator: &Operator) {
    let jobs = CHILDREN.map(|_| installation.create_job(&json!({})));
    for job in &jobs {
        installation.wait_for_pods_of(job);
        installation.patch_job(job, &json!({"activeDeadlineSeconds": 1}));
    }
    for ((group, resource), job) in CHILDREN.into_iter().zip(jobs) {
        wait_until("the end of the job", LIMIT, || installation.has_ended(&job)).unwrap();
        for permission in installation.permissions(group, resource, &["delete"]) {
            installation.without(&[permission], || {
                installation.patch_job(&job, &json!({"ttlSecondsAfterFinished": 0}));
                operator
            });
        }
        installation.delete_job(&job);
    }
}
