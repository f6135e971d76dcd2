//! Permissions for PodGroups, which the chart grants for the schedulers of `gangSchedulers`.

use serde_json::json;

use super::super::operator::Operator;
use super::installation::Installation;

/// Schedulers and the API groups of their PodGroups.
const SCHEDULERS: [(&str, &str); 3] = [
    ("native", "scheduling.k8s.io"),
    ("coscheduling", "scheduling.x-k8s.io"),
    ("volcano", "scheduling.volcano.sh"),
];

/// Starts and suspends jobs with a gang, each time without one permission.
pub(super) fn remove(installation: &Installation, operator: &Operator) {
    let gang = |scheduler: &str| {
        json!({"spec": {
            "drainTimeoutSeconds": 1, "scheduling": {"gang": {scheduler: {}}},
        }})
    };
    let running = SCHEDULERS.map(|(scheduler, _)| installation.create_job(&gang(scheduler)));
    for ((scheduler, group), job) in SCHEDULERS.into_iter().zip(running) {
        for permission in installation.permissions(group, "podgroups", &["get", "create", "patch"])
        {
            installation.create_job_without(permission, operator, &gang(scheduler));
        }
        installation.wait_for_pods_of(&job);
        for permission in installation.permissions(group, "podgroups", &["delete"]) {
            installation.without(&[permission], || {
                installation.patch_job(&job, &json!({"suspend": true}));
                operator
            });
        }
        installation.delete_job(&job);
    }
}
