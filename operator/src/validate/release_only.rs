//! Jobs that can only release their pods: suspended, with a spec that has become invalid.
//!
//! A spec becomes invalid by an edit, or by an operator release with more rules. Such a job can
//! still be suspended, because the spec of a running job cannot be fixed.

use std::ops::Deref;

use rljob_crds::RLJob;
use rljob_crds::names::CONDITION_SUSPENDED;
use rljob_crds::status::RLJobStatus;

use super::Job;

/// A suspended job with pods whose spec was not validated. Children are rendered from
/// [`ValidatedJob`](super::ValidatedJob) only, so nothing can be created for it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseOnly(Job);

impl ReleaseOnly {
    /// The job, if it must be suspended and its pods are not released yet.
    pub fn from_unvalidated(object: &RLJob) -> Option<Self> {
        let has_pods = object.status.as_ref().is_some_and(has_pods);
        (object.spec.suspend && has_pods).then(|| Self(object.into()))
    }
}

impl Deref for ReleaseOnly {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0
    }
}

/// Whether the run has started, has not ended, and is not suspended.
fn has_pods(status: &RLJobStatus) -> bool {
    let is_suspended = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == CONDITION_SUSPENDED && condition.status == "True");
    status.start_time.is_some() && status.completion_time.is_none() && !is_suspended
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;
    use crate::validate::test_support::minimal;

    #[test]
    fn a_started_job_can_be_released_until_it_is_suspended_or_finished() {
        let time = Time(Timestamp::UNIX_EPOCH);
        let running = RLJobStatus { start_time: Some(time.clone()), ..RLJobStatus::default() };
        let suspended = RLJobStatus {
            conditions: vec![Condition {
                type_: "Suspended".to_owned(),
                status: "True".to_owned(),
                reason: "Suspended".to_owned(),
                message: String::new(),
                last_transition_time: time.clone(),
                observed_generation: None,
            }],
            ..running.clone()
        };
        let finished = RLJobStatus { completion_time: Some(time), ..running.clone() };
        for (case, suspend, status, expected) in [
            ("running, not suspended by the user", false, &running, false),
            ("running, suspended by the user", true, &running, true),
            ("pods released", true, &suspended, false),
            ("never started", true, &RLJobStatus::default(), false),
            ("finished", true, &finished, false),
        ] {
            let mut object = minimal();
            object.spec.suspend = suspend;
            object.status = Some(status.clone());
            assert_eq!(ReleaseOnly::from_unvalidated(&object).is_some(), expected, "{case}");
        }
    }
}
