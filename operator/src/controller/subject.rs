//! The validate step: jobs that a pass can act on.

use std::ops::Deref;

use rljob_crds::RLJob;

use crate::validate::{InvalidSpec, Job, Policy, UnvalidatedJob, ValidatedJob, validate};

/// A job that a pass can act on.
pub(super) enum Subject {
    Valid(ValidatedJob),
    Invalid(UnvalidatedJob, InvalidSpec),
}

impl Subject {
    pub(super) fn new(object: &RLJob, policy: Policy) -> Self {
        match validate(object, policy) {
            Ok(job) => Self::Valid(job),
            Err(invalid) => Self::Invalid(object.into(), invalid),
        }
    }

    pub(super) fn invalid(&self) -> Option<&InvalidSpec> {
        match self {
            Self::Valid(_) => None,
            Self::Invalid(_, invalid) => Some(invalid),
        }
    }
}

impl Deref for Subject {
    type Target = Job;

    fn deref(&self) -> &Job {
        match self {
            Self::Valid(job) => job,
            Self::Invalid(job, _) => job,
        }
    }
}
