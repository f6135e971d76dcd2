//! Names of PodGroups to observe: that of the job's gang, and those of gangs that it no longer has.

use std::sync::Arc;

use rljob_crds::status::RLJobStatus;

use crate::cache::ObservedChild;
use crate::children::{ChildName, Kind};
use crate::context::Context;
use crate::desired::gang::name;
use crate::pod_group::pod_group_name;
use crate::validate::Job;

/// The PodGroup that the job needs or has: a job that is suspended or has ended has none to create,
/// so that no request asks for its name.
pub(super) fn wanted(job: &Job, old: &RLJobStatus) -> Option<ChildName> {
    let may_have_pods = !job.spec.suspend && old.completion_time.is_none();
    pod_group_name(job).filter(|_| may_have_pods)
}

/// The job's other PodGroups in the cache.
pub(super) fn obsolete(context: &Context, job: &Job) -> Vec<(ChildName, Arc<ObservedChild>)> {
    let schedulers = context.settings.gang_schedulers.iter();
    let names = schedulers.map(|scheduler| (Kind::PodGroup(scheduler), name(job)));
    names
        .filter_map(|name| Some((name.clone(), context.cache.child(&job.namespace, &name)?)))
        .filter(|(_, child)| child.owner.as_deref() == Some(job.uid.as_str()))
        .collect()
}
