//! Rules of trackers.

use rljob_crds::RLJobSpec;
use rljob_crds::tracking::{NO_TRACKER, TRACES_PATH};

use crate::validate::Problem;

pub(super) fn check_tracking(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let Some(tracking) = &spec.tracking else { return };
    if tracking.urls().next().is_none() {
        problems.push(Problem::new("spec.tracking", NO_TRACKER));
    }
    let Some(receiver) = &tracking.open_telemetry else { return };
    if receiver.endpoint.trim_end_matches('/').ends_with(&format!("/{TRACES_PATH}")) {
        let message = format!(
            "must not end in /{TRACES_PATH}: the coordinator appends this path; leave it out"
        );
        problems.push(Problem::new("spec.tracking.openTelemetry.endpoint", message));
    }
}
