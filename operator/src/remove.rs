//! Removes a finished job's children, all of them its own: each as it was seen, by UID and
//! resourceVersion. What marks that there are any, the ConfigMap, goes last, so that a removal that
//! was cut short is taken up again.

use futures::future::join_all;
use kube::api::{DeleteParams, Preconditions};

use crate::apply::{ApplyError, Target};
use crate::children::{Child, ChildName, Kind};
use crate::observe::Observed;

/// The order in which kinds go.
const ORDER: [Kind; 6] = [
    Kind::StatefulSet,
    Kind::Service,
    Kind::PodDisruptionBudget,
    Kind::NetworkPolicy,
    Kind::Secret,
    Kind::ConfigMap,
];

/// Why a child could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// It is not what it was taken for; the next pass will see it as it is.
    #[error("{0} {1} changed while it was being removed")]
    Conflict(Kind, String),
    /// The request failed.
    #[error("failed to remove {0} {1}")]
    Failed(Kind, String, #[source] Box<kube::Error>),
    /// It could not be found out which Secret lives: it is never read.
    #[error(transparent)]
    Secret(#[from] ApplyError),
}

/// Removes everything that `apply` made.
///
/// # Errors
/// The first child that cannot be removed; what is gone already is none.
pub async fn remove(
    target: &Target<'_>,
    children: &[Child],
    observed: &Observed,
) -> Result<(), RemoveError> {
    for kind in ORDER {
        for secret in children.iter().filter(|child| kind == Kind::Secret && child.name.0 == kind) {
            if let Some((uid, version)) = target.identify(secret).await? {
                remove_one(target, &secret.name, uid, version).await?;
            }
        }
        let own =
            observed.children.iter().filter(|(name, live)| name.0 == kind && !live.terminating);
        // Each is waited for: what is given up on its way would be asked for once more.
        let outcomes = join_all(own.map(|(name, live)| {
            remove_one(target, name, live.uid.to_string(), live.version.to_string())
        }))
        .await;
        outcomes.into_iter().collect::<Result<(), RemoveError>>()?;
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
            target.cache.removed(*kind, target.namespace, name, &version);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            target.applied.forget(target.uid, &(*kind, name.clone()));
            Err(RemoveError::Conflict(*kind, name.clone()))
        }
        Err(error) => Err(RemoveError::Failed(*kind, name.clone(), Box::new(error))),
    }
}
