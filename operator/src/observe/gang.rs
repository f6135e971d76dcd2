//! Name of the PodGroup to observe.

use rljob_crds::status::RLJobStatus;

use crate::children::ChildName;
use crate::pod_group::pod_group_name;
use crate::validate::Job;

/// The PodGroup that the job needs or has: a job that is suspended or has ended has none to create,
/// so that no request asks for its name.
pub(super) fn wanted(job: &Job, old: &RLJobStatus) -> Option<ChildName> {
    let may_have_pods = !job.spec.suspend && old.completion_time.is_none();
    pod_group_name(job).filter(|_| may_have_pods)
}
