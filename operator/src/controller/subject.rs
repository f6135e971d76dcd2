//! The validate step: jobs that a pass can act on.

use std::ops::Deref;

use rljob_crds::RLJob;

use crate::observe::ObservedQueue;
use crate::queue;
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

    /// The job as its quota lets it run: with the engines and the placements that Kueue granted.
    pub(super) fn admit(&mut self, queued: &ObservedQueue) {
        let job: &mut Job = match self {
            Self::Valid(job) => job,
            Self::Invalid(job, _) => job,
        };
        if let Some(workload) = queued.workload() {
            queue::admission::limit_engines(&mut job.spec, workload);
        }
        queue::placement::place(&mut job.spec, &queued.placements);
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
