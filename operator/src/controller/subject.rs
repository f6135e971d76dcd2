//! The validate step: jobs that a pass can act on.

use std::ops::Deref;

use rljob_crds::RLJob;

use crate::validate::{InvalidSpec, Job, Policy, ReleaseOnly, ValidatedJob, validate};

/// A job that a pass can act on.
pub(super) enum Subject {
    Valid(ValidatedJob),
    ReleaseOnly(ReleaseOnly),
}

impl Deref for Subject {
    type Target = Job;

    fn deref(&self) -> &Job {
        match self {
            Self::Valid(job) => job,
            Self::ReleaseOnly(job) => job,
        }
    }
}

/// Accepts a valid job, and a suspended job with an invalid spec whose pods must be released.
pub(super) fn validate_subject(object: &RLJob, policy: Policy) -> Result<Subject, InvalidSpec> {
    validate(object, policy).map(Subject::Valid).or_else(|invalid| {
        ReleaseOnly::from_unvalidated(object).map(Subject::ReleaseOnly).ok_or(invalid)
    })
}
