//! Applies what differs: server-side, one field manager, strict about unknown fields. Nothing is
//! ever deleted here.
//!
//! ```text
//!  wanted ─▶ lives as wanted, or as an apply of the same left it? ── yes ─▶ nothing
//!                │ no                                     (so that a server or webhook that alters what it takes causes no loop)
//!                ├─ it lives ──────▶ applied to that very object and version, or 409
//!                └─ nothing there ─▶ made only if there is still nothing, or 409
//! ```
//! Tokens are never read, so that nobody can say whether their Secret lives: it is applied when
//! this process has not done so yet, and with whatever else is applied but for what only takes pods
//! away.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use rljob_crds::names::MANAGED_BY;
use serde_json::Value;

use crate::cache::{Cache, Live, Wanted};
use crate::children::{Child, ChildName, Kind};
use crate::desired::pin;
use crate::observe::Observed;

/// No object ever has this resourceVersion: an apply that names it makes the object, and is refused
/// where there is one.
const NOTHING_THERE: &str = "1";

/// An object that could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The object is not what it was taken for; the next pass will see it as it is.
    #[error("{kind} {name} changed while it was being applied")]
    Conflict {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// The API server will refuse it again: the object is not valid, or a policy or quota is
    /// against it.
    #[error("the API server refused {kind} {name}: {message}")]
    Rejected {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The API server's words.
        message: String,
    },
    /// The request failed; it may succeed the next time.
    #[error("failed to apply {kind} {name}")]
    Failed {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// What applies of this process left behind, by the job's UID. A new process finds it again.
#[derive(Debug, Default)]
pub struct Applied(Mutex<HashMap<String, HashMap<ChildName, Left>>>);

/// What an apply left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    /// Digest of what was wanted.
    wanted: u64,
    /// Fingerprint of what it made.
    fingerprint: u64,
    /// UID and resourceVersion of a Secret; the cache has those of the rest.
    identity: Option<(String, String)>,
}

impl Applied {
    /// Forgets jobs that are gone.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }

    /// UID and resourceVersion of a Secret as an apply left it.
    pub fn identity(&self, uid: &str, name: &ChildName) -> Option<(String, String)> {
        self.left(uid, name)?.identity
    }

    fn left(&self, uid: &str, name: &ChildName) -> Option<Left> {
        self.lock().get(uid)?.get(name).cloned()
    }

    fn remember(&self, uid: &str, name: &ChildName, left: Left) {
        self.lock().entry(uid.to_owned()).or_default().insert(name.clone(), left);
    }

    /// Forgets what an apply left.
    pub fn forget(&self, uid: &str, name: &ChildName) {
        if let Some(children) = self.lock().get_mut(uid) {
            children.remove(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashMap<ChildName, Left>>> {
        // Entries are replaced whole; a panic elsewhere cannot leave one half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the children of one job are applied.
pub struct Target<'a> {
    /// The API server.
    pub client: &'a Client,
    /// Learns what was written.
    pub cache: &'a Cache,
    /// What was applied before.
    pub applied: &'a Applied,
    /// The job's namespace.
    pub namespace: &'a str,
    /// The job's UID.
    pub uid: &'a str,
}

impl Target<'_> {
    /// Applies what does not live as wanted, turn by turn. Gives how many requests that took.
    ///
    /// # Errors
    /// The first object that cannot be applied; of those before it and beside it, each is applied
    /// if it can be.
    pub async fn apply(
        &self,
        children: &[Child],
        observed: &Observed,
        secret_is_missed: bool,
    ) -> Result<usize, ApplyError> {
        let mut due: Vec<&Child> = children
            .iter()
            .filter(|child| child.name.0 != Kind::Secret && self.is_due(child, observed))
            .collect();
        let anything_else = due.iter().any(|child| !wants_no_pods(child));
        due.extend(children.iter().filter(|child| {
            child.name.0 == Kind::Secret
                && (anything_else || secret_is_missed || self.is_due(child, observed))
        }));
        for turn in 0..=2 {
            let outcomes = join_all(
                due.iter()
                    .filter(|child| child.turn() == turn)
                    .map(|child| self.apply_one(child, observed)),
            )
            .await;
            outcomes.into_iter().collect::<Result<(), ApplyError>>()?;
        }
        Ok(due.len())
    }

    fn is_due(&self, child: &Child, observed: &Observed) -> bool {
        let (left, wanted) =
            (self.applied.left(self.uid, &child.name), Wanted::new(child.name.0, &child.object));
        is_due(
            child.name.0,
            &wanted,
            observed.children.get(&child.name).map(AsRef::as_ref),
            left.as_ref(),
        )
    }

    /// Applies a child to what lives of it, or else to nothing.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn apply_one(&self, child: &Child, observed: &Observed) -> Result<(), ApplyError> {
        let (kind, name) = &child.name;
        let live = observed
            .children
            .get(&child.name)
            .map(|live| (live.uid.to_string(), live.version.to_string()));
        let known = live.or_else(|| self.applied.identity(self.uid, &child.name));
        let api = kind.api(self.client, Some(self.namespace));
        let object = with_precondition(self.whole(child, &api).await?, *kind, known);
        let parameters = PatchParams::apply(MANAGED_BY).force().validation_strict();
        let answer = api.patch(name, &parameters, &Patch::Apply(&object)).await;
        let made = answer.map_err(|error| self.failed(&child.name, error))?;
        self.remember(child, &made);
        Ok(())
    }

    /// The object with what is pinned, which is read where it lives. One that has changed since is
    /// not applied to: the version that is known says so.
    async fn whole(&self, child: &Child, api: &Api<DynamicObject>) -> Result<Value, ApplyError> {
        if !pin::has_marks(&child.object) {
            return Ok(child.object.clone());
        }
        let (kind, name) = &child.name;
        let live = api.get_opt(name).await.map_err(|error| self.failed(&child.name, error))?;
        let whole = live.and_then(|live| {
            pin::fill(child.object.clone(), &serde_json::to_value(live).unwrap_or_default())
        });
        whole.ok_or_else(|| ApplyError::Conflict { kind: *kind, name: name.clone() })
    }

    /// UID and resourceVersion of the Secret that lives, if one does, without reading it: those
    /// that an apply of this process left, or that one would leave which is not carried out.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn identify(&self, secret: &Child) -> Result<Option<(String, String)>, ApplyError> {
        if let Some(identity) = self.applied.identity(self.uid, &secret.name) {
            return Ok(Some(identity));
        }
        let (kind, name) = &secret.name;
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::apply(MANAGED_BY).force().validation_strict()
        };
        let answer = kind
            .api(self.client, Some(self.namespace))
            .patch(name, &parameters, &Patch::Apply(&secret.object))
            .await;
        let would_be = answer.map_err(|error| self.failed(&secret.name, error))?.metadata;
        // One that would be made has no version yet.
        Ok(would_be.uid.zip(would_be.resource_version.filter(|version| !version.is_empty())))
    }

    fn remember(&self, child: &Child, made: &DynamicObject) {
        let kind = child.name.0;
        let live =
            if kind == Kind::Secret { Live::new(kind, made) } else { self.cache.wrote(kind, made) };
        let wanted = Wanted::new(kind, &child.object).digest;
        let identity = (kind == Kind::Secret).then(|| (live.uid.into(), live.version.into()));
        let left = Left { wanted, fingerprint: live.fingerprint, identity };
        self.applied.remember(self.uid, &child.name, left);
    }

    fn failed(&self, child: &ChildName, error: kube::Error) -> ApplyError {
        let (kind, name) = child.clone();
        match error {
            kube::Error::Api(status) if status.code == 409 => {
                self.applied.forget(self.uid, child);
                ApplyError::Conflict { kind, name }
            }
            // 400 and 422: not valid; 403: a policy or a quota.
            kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422) => {
                ApplyError::Rejected { kind, name, message: status.message }
            }
            error => ApplyError::Failed { kind, name, source: Box::new(error) },
        }
    }
}

/// Whether an apply is due, of what is wanted to what lives, after what an apply left.
fn is_due(kind: Kind, wanted: &Wanted, live: Option<&Live>, left: Option<&Left>) -> bool {
    let applied = left.filter(|left| left.wanted == wanted.digest);
    match live {
        None => kind != Kind::Secret || applied.is_none(),
        // Its successor is made when it is gone.
        Some(live) if live.terminating => false,
        Some(live) => {
            applied.is_none_or(|left| left.fingerprint != live.fingerprint) && !live.holds(wanted)
        }
    }
}

fn wants_no_pods(child: &Child) -> bool {
    child.object.pointer("/spec/replicas").and_then(Value::as_i64) == Some(0)
}

/// The object, to be applied to the one that is known and no other; to nothing, if none is known.
/// Secrets are not known to a new process: their names hold the UID.
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
            metadata.insert("resourceVersion".to_owned(), NOTHING_THERE.into());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live(data: &Value, terminating: bool) -> Live {
        let mut object =
            json!({"metadata": {"name": "c", "uid": "u-1", "resourceVersion": "7"}, "data": data});
        if terminating {
            object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
        }
        Live::new(Kind::ConfigMap, &serde_json::from_value(object).unwrap())
    }

    fn left(wanted: &Wanted, live: &Live) -> Left {
        Left { wanted: wanted.digest, fingerprint: live.fingerprint, identity: None }
    }

    #[test]
    fn only_what_differs_is_due_and_what_a_server_alters_is_due_once() {
        let wants = |data: Value| {
            Wanted::new(Kind::ConfigMap, &json!({"metadata": {"name": "c"}, "data": data}))
        };
        let (one, two) = (wants(json!({"a": "1"})), wants(json!({"a": "2"})));
        let (as_wanted, altered) =
            (live(&json!({"a": "1", "of others": "x"}), false), live(&json!({"a": "one"}), false));
        let due = |wanted, live, left: Option<&Left>| is_due(Kind::ConfigMap, wanted, live, left);
        assert!(due(&one, None, None), "nothing is there");
        assert!(!due(&one, Some(&as_wanted), None), "it is there, as a new process finds it");
        assert!(
            due(&two, Some(&as_wanted), Some(&left(&one, &as_wanted))),
            "something else is wanted"
        );
        assert!(due(&one, Some(&altered), None), "it differs");
        assert!(
            !due(&one, Some(&altered), Some(&left(&one, &altered))),
            "an apply of the same left it so"
        );
        assert!(
            due(&one, Some(&altered), Some(&left(&one, &as_wanted))),
            "somebody has altered it since"
        );
        assert!(!due(&one, Some(&live(&json!({}), true)), None), "it is on its way out");
        assert!(
            is_due(Kind::Secret, &one, None, None)
                && !is_due(Kind::Secret, &one, None, Some(&left(&one, &altered))),
            "a Secret is due once"
        );
    }

    #[test]
    fn what_is_applied_names_the_object_that_it_is_for() {
        let metadata = |kind, known: Option<(&str, &str)>| {
            let known = known.map(|(uid, version)| (uid.to_owned(), version.to_owned()));
            with_precondition(json!({"metadata": {"name": "c"}}), kind, known)["metadata"].take()
        };
        assert_eq!(
            metadata(Kind::Service, Some(("u-1", "7"))),
            json!({"name": "c", "uid": "u-1", "resourceVersion": "7"})
        );
        assert_eq!(metadata(Kind::Service, None), json!({"name": "c", "resourceVersion": "1"}));
        assert_eq!(metadata(Kind::Secret, None), json!({"name": "c"}));
    }
}
