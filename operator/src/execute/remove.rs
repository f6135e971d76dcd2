//! Removal of children of a finished job, and of those that a job needs no longer: each by the UID
//! and resourceVersion that were observed.
//! The ConfigMap is deleted last: while it exists, an interrupted removal is continued.

use futures::future::join_all;
use kube::api::{DeleteParams, Preconditions};
use rljob_crds::gang::GangScheduler;

use super::apply::{ApplyError, Target};
use crate::children::{Child, ChildName, Kind};
use crate::observe::ObservedChildren;

/// The order in which kinds are deleted.
const ORDER: [Kind; 10] = [
    Kind::StatefulSet,
    Kind::PodGroup(GangScheduler::Native),
    Kind::PodGroup(GangScheduler::Coscheduling),
    Kind::PodGroup(GangScheduler::Volcano),
    Kind::Workload,
    Kind::Service,
    Kind::PodDisruptionBudget,
    Kind::NetworkPolicy,
    Kind::Secret,
    Kind::ConfigMap,
];

/// A child that was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// It differs from the observed one; the next pass observes it again.
    #[error("{0} {1} changed while it was being deleted")]
    Conflict(Kind, String),
    #[error("failed to delete {0} {1}")]
    Failed(Kind, String, #[source] Box<kube::Error>),
    /// The UID of the Secret, which cannot be read, was not determined.
    #[error(transparent)]
    Secret(#[from] ApplyError),
}

/// Deletes every child.
///
/// # Errors
/// The first child that is not deleted. A child that does not exist is skipped.
pub(super) async fn remove(
    target: &Target<'_>,
    children: &[Child],
    observed: &ObservedChildren,
) -> Result<(), RemoveError> {
    for kind in ORDER {
        for secret in children.iter().filter(|child| kind == Kind::Secret && child.name.0 == kind) {
            if let Some((uid, version)) = target.identify(secret).await? {
                remove_one(target, &secret.name, uid, version).await?;
            }
        }
        let own = observed.iter().filter(|(name, child)| name.0 == kind && !child.terminating);
        // All requests are awaited: a cancelled one may have succeeded and would be sent again.
        let outcomes = join_all(own.map(|(name, child)| {
            remove_one(target, name, child.uid.to_string(), child.version.to_string())
        }))
        .await;
        outcomes.into_iter().collect::<Result<(), RemoveError>>()?;
    }
    Ok(())
}

/// Deletes these children, if they were observed.
///
/// # Errors
/// The first child that is not deleted. A child that does not exist is skipped.
pub(super) async fn remove_named(
    target: &Target<'_>,
    names: &[ChildName],
    observed: &ObservedChildren,
) -> Result<(), RemoveError> {
    for name in names {
        if let Some(child) = observed.get(name) {
            remove_one(target, name, child.uid.to_string(), child.version.to_string()).await?;
        }
    }
    Ok(())
}

async fn remove_one(
    target: &Target<'_>,
    (kind, name): &ChildName,
    uid: String,
    version: String,
) -> Result<(), RemoveError> {
    let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version.clone()) };
    let parameters = DeleteParams::background().preconditions(preconditions);
    match kind.api(target.client, Some(target.namespace)).delete(name, &parameters).await {
        Ok(_) => {
            target.cache.drop_deleted(*kind, target.namespace, name, &version);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            target.applied.remove(target.uid, &(*kind, name.clone()));
            Err(RemoveError::Conflict(*kind, name.clone()))
        }
        Err(error) => Err(RemoveError::Failed(*kind, name.clone(), Box::new(error))),
    }
}
