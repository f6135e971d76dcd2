//! Permissions of a start: the token key, the Lease, lists and watches.

use super::installation::Installation;
use super::permissions::Permission;

/// Starts the operator without permissions for the token key, the Lease and the list of RLJobs, one
/// by one; then without lists, and without watches. These are independent of each other.
pub(super) fn remove(installation: &Installation) {
    let start = || installation.start_operator();
    let is_first = |permission: &&Permission| {
        let of_operator = permission.role.is_of_operator() && permission.verb != "update";
        of_operator || is_list_of_jobs(permission)
    };
    for permission in installation.granted.iter().filter(is_first) {
        installation.without(&[permission], start);
    }
    for verb in ["list", "watch"] {
        // Events are listed only for pods that do not start.
        let is_watched = |permission: &&Permission| {
            permission.verb == verb
                && permission.resource != "events"
                && !is_list_of_jobs(permission)
        };
        let all: Vec<_> = installation.granted.iter().filter(is_watched).collect();
        installation.without(&all, start);
    }
}

fn is_list_of_jobs(permission: &Permission) -> bool {
    (permission.resource.as_str(), permission.verb.as_str()) == ("rljobs", "list")
}
