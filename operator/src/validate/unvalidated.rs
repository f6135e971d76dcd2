//! Jobs whose spec is invalid. Their pods can be watched, drained and released, but no object is
//! created or changed for them.
//!
//! A spec becomes invalid by an operator release with more rules, or by an edit that only the
//! operator can check.

use std::ops::{Deref, DerefMut};

use rljob_crds::RLJob;

use super::Job;

/// A job whose spec was not validated. Children are rendered from
/// [`ValidatedJob`](super::ValidatedJob) only, so nothing can be created for it.
#[derive(Clone, Debug, PartialEq)]
pub struct UnvalidatedJob(Job);

impl From<&RLJob> for UnvalidatedJob {
    fn from(object: &RLJob) -> Self {
        Self(object.into())
    }
}

impl Deref for UnvalidatedJob {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0
    }
}

impl DerefMut for UnvalidatedJob {
    fn deref_mut(&mut self) -> &mut Job {
        &mut self.0
    }
}
