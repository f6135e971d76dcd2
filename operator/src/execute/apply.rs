//! Server-side apply of the children that differ, with one field manager and strict validation.
//!
//! ```text
//!  desired child ─▶ satisfied, or unchanged since an apply of it? ── yes ─▶ nothing
//!                     │ no                 (avoids loops with webhooks that alter fields)
//!                     ├─ it exists ──▶ applied to the observed UID and version, or 409
//!                     └─ otherwise ──▶ created if the name is still free, or 409
//! ```
//!
//! The Secret is never read, so its existence is unknown to a new process. It is applied once by
//! each process, and with every other child that creates pods.

use futures::future::join_all;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use rljob_crds::names::MANAGED_BY;
use serde_json::{Value, json};

use super::actions::Secrets;
use crate::cache::{Cache, DesiredChild, ObservedChild};
use crate::children::{Child, ChildName, Kind};
use crate::desired::{Role, pin};
use crate::gang;
use crate::memory::{Applied, AppliedChild};
use crate::observe::ObservedChildren;

/// A resourceVersion that no object has: an apply with it creates the object, and gets 409 if one
/// exists.
const NO_OBJECT: &str = "1";

/// A child that was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It differs from the observed one; the next pass observes it again.
    #[error("{kind} {name} changed while it was being applied")]
    Conflict { kind: Kind, name: String },
    /// The API server will reject it again: it is invalid, or a policy or quota forbids it.
    #[error("the API server rejected {kind} {name}: {message}")]
    Rejected { kind: Kind, name: String, message: String },
    /// A later request may succeed.
    #[error("failed to apply {kind} {name}")]
    Failed { kind: Kind, name: String, source: Box<kube::Error> },
}

/// The children of one job at the API server.
pub(super) struct Target<'a> {
    pub(super) client: &'a Client,
    /// Stores the results of writes.
    pub(super) cache: &'a Cache,
    pub(super) applied: &'a Applied,
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
}

impl Target<'_> {
    /// Applies the children that differ, in the order of [`Child::apply_order`]. Returns the number
    /// of requests.
    ///
    /// # Errors
    /// The first child that is not applied. Children of an earlier or the same position may be
    /// applied, and all if pods do not depend on it.
    pub(super) async fn apply(
        &self,
        children: &[Child],
        observed: &ObservedChildren,
        secrets: Secrets,
    ) -> Result<usize, ApplyError> {
        let mut due: Vec<&Child> = children
            .iter()
            .filter(|child| child.name.0 != Kind::Secret && self.is_due(child, observed))
            .collect();
        let creates_pods = due.iter().any(|child| !wants_no_pods(child));
        due.extend(children.iter().filter(|child| {
            child.name.0 == Kind::Secret
                && (creates_pods || secrets == Secrets::Always || self.is_due(child, observed))
        }));
        let mut deferred = Ok(());
        for order in 0..=2 {
            let children = due.iter().filter(|child| child.apply_order() == order);
            let applies =
                children.map(async |child| (child.name.0, self.apply_one(child, observed).await));
            for (kind, outcome) in join_all(applies).await {
                if kind.is_independent() {
                    deferred = deferred.and(outcome);
                } else {
                    outcome?;
                }
            }
        }
        deferred.map(|()| due.len())
    }

    fn is_due(&self, child: &Child, observed: &ObservedChildren) -> bool {
        let desired = DesiredChild::new(child.name.0, &child.object);
        let existing = observed.get(&child.name).map(AsRef::as_ref);
        let applied = self.applied.get(self.uid, &child.name);
        is_due(child.name.0, &desired, existing, applied.as_ref())
    }

    /// Applies a child to the observed object, or creates it.
    async fn apply_one(
        &self,
        child: &Child,
        observed: &ObservedChildren,
    ) -> Result<(), ApplyError> {
        let (kind, name) = &child.name;
        let known = match observed.get(&child.name) {
            Some(existing) => Some((existing.uid.to_string(), existing.version.to_string())),
            None => self.secret_identity(&child.name),
        };
        let api = kind.api(self.client, Some(self.namespace));
        let object = with_precondition(self.complete(child, &api).await?, *kind, known);
        let parameters = PatchParams::apply(MANAGED_BY).force().validation_strict();
        let response = api.patch(name, &parameters, &Patch::Apply(&object)).await;
        let stored = response.map_err(|error| self.failed(&child.name, error))?;
        if let Some(message) = gang::dropped(&child.object, &stored.data) {
            return Err(ApplyError::Rejected { kind: *kind, name: name.clone(), message });
        }
        self.remember(child, &stored);
        Ok(())
    }

    /// Replaces marks by the pinned texts of the existing object. If that has changed since it was
    /// observed, its resourceVersion makes the apply fail.
    async fn complete(&self, child: &Child, api: &Api<DynamicObject>) -> Result<Value, ApplyError> {
        if !pin::has_marks(&child.object) {
            return Ok(child.object.clone());
        }
        let (kind, name) = &child.name;
        let existing = api.get_opt(name).await.map_err(|error| self.failed(&child.name, error))?;
        let complete = existing.and_then(|existing| {
            pin::fill(child.object.clone(), &serde_json::to_value(existing).unwrap_or_default())
        });
        complete.ok_or_else(|| ApplyError::Conflict { kind: *kind, name: name.clone() })
    }

    /// UID and resourceVersion of the Secret, if it exists, without reading it: from an apply of
    /// this process, or from a dry run.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub(super) async fn identify(
        &self,
        secret: &Child,
    ) -> Result<Option<(String, String)>, ApplyError> {
        if let Some(identity) = self.secret_identity(&secret.name) {
            return Ok(Some(identity));
        }
        let (kind, name) = &secret.name;
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::apply(MANAGED_BY).force().validation_strict()
        };
        let response = kind
            .api(self.client, Some(self.namespace))
            .patch(name, &parameters, &Patch::Apply(&secret.object))
            .await;
        let result = response.map_err(|error| self.failed(&secret.name, error))?.metadata;
        // A Secret that does not exist has no version in the result.
        Ok(result.uid.zip(result.resource_version.filter(|version| !version.is_empty())))
    }

    fn secret_identity(&self, name: &ChildName) -> Option<(String, String)> {
        self.applied.get(self.uid, name)?.identity
    }

    fn remember(&self, child: &Child, stored: &DynamicObject) {
        let kind = child.name.0;
        let is_secret = kind == Kind::Secret;
        let stored = if is_secret {
            ObservedChild::new(kind, stored)
        } else {
            self.cache.store_written(kind, stored)
        };
        let applied = AppliedChild {
            desired: DesiredChild::new(kind, &child.object).digest,
            fingerprint: stored.fingerprint,
            identity: is_secret.then(|| (stored.uid.into(), stored.version.into())),
        };
        self.applied.insert(self.uid, &child.name, applied);
    }

    /// Scales the StatefulSets to zero, the coordinator's last. Returns the number of requests.
    ///
    /// # Errors
    /// The first StatefulSet that is not scaled.
    pub(super) async fn release(&self, observed: &ObservedChildren) -> Result<usize, ApplyError> {
        let mut due: Vec<(&ChildName, &ObservedChild)> = observed
            .iter()
            .filter(|(_, child)| child.set.as_ref().is_some_and(|set| set.replicas > 0))
            .map(|(name, child)| (name, child.as_ref()))
            .collect();
        due.sort_by_key(|((_, name), _)| name.ends_with(Role::Coordinator.as_str()));
        for (name, child) in &due {
            let patch = json!({
                "metadata": { "uid": child.uid, "resourceVersion": child.version },
                "spec": { "replicas": 0 },
            });
            let parameters = PatchParams {
                field_manager: Some(MANAGED_BY.to_owned()),
                ..PatchParams::default()
            };
            let api = name.0.api(self.client, Some(self.namespace));
            let response = api.patch(&name.1, &parameters, &Patch::Merge(patch)).await;
            let stored = response.map_err(|error| self.failed(name, error))?;
            self.cache.store_written(name.0, &stored);
        }
        Ok(due.len())
    }

    fn failed(&self, child: &ChildName, error: kube::Error) -> ApplyError {
        let (kind, name) = child.clone();
        match (kind, error) {
            (_, kube::Error::Api(status)) if status.code == 409 => {
                self.applied.remove(self.uid, child);
                ApplyError::Conflict { kind, name }
            }
            (Kind::PodGroup(scheduler), kube::Error::Api(status)) if status.code == 404 => {
                ApplyError::Rejected { kind, name, message: gang::unserved(scheduler) }
            }
            // 400 and 422: invalid; 403: a policy or a quota.
            (_, kube::Error::Api(status))
                if matches!(status.code, 400 | 403 | 422) && !is_undiscovered(&status.message) =>
            {
                ApplyError::Rejected { kind, name, message: status.message }
            }
            (_, error) => ApplyError::Failed { kind, name, source: Box::new(error) },
        }
    }
}

/// Whether the admission plugin `OwnerReferencesPermissionEnforcement` does not know RLJobs yet: it
/// reads the kinds of the API server every 30 s, and rejects their children until then.
fn is_undiscovered(message: &str) -> bool {
    message.contains("cannot find RESTMapping")
}

/// Whether an apply is due, given the existing object and the result of the last apply.
fn is_due(
    kind: Kind,
    desired: &DesiredChild,
    existing: Option<&ObservedChild>,
    applied: Option<&AppliedChild>,
) -> bool {
    let applied = applied.filter(|applied| applied.desired == desired.digest);
    match existing {
        None => kind != Kind::Secret || applied.is_none(),
        // Its replacement is created after its deletion.
        Some(existing) if existing.terminating => false,
        Some(existing) => {
            let is_unchanged =
                applied.is_some_and(|applied| applied.fingerprint == existing.fingerprint);
            !is_unchanged && !existing.satisfies(desired)
        }
    }
}

fn wants_no_pods(child: &Child) -> bool {
    child.object.pointer("/spec/replicas").and_then(Value::as_i64) == Some(0)
}

/// Adds the identity of the known object, or the condition that none exists. Secrets are unknown to
/// a new process, and their names contain the UID of the job.
fn with_precondition(mut object: Value, kind: Kind, known: Option<(String, String)>) -> Value {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return object;
    };
    match known {
        Some((uid, version)) => {
            metadata.insert("uid".to_owned(), uid.into());
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        None if kind == Kind::Secret => {}
        None => {
            metadata.insert("resourceVersion".to_owned(), NO_OBJECT.into());
        }
    }
    object
}

#[cfg(test)]
mod tests;
