//! Checkpoints of a run in the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_crds::status::{CheckpointStatus, RLJobStatus};
use rljob_protocol::status::CoordinatorStatus;
use rljob_protocol::version::Version;

/// The newest complete checkpoint, and all that the coordinator reports, oldest first. Without a
/// report, the recorded ones. Older coordinators report the newest one
/// only.
pub(super) fn checkpoints(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    now: Timestamp,
) -> (Option<CheckpointStatus>, Vec<CheckpointStatus>) {
    let Some((report, newest)) = report.and_then(|report| Some((report, report.checkpoint?)))
    else {
        return (old.checkpoint.clone(), old.checkpoints.clone());
    };
    let versions =
        if report.checkpoints.is_empty() { vec![newest] } else { report.checkpoints.clone() };
    let known = |version| entry(old, version, now);
    (Some(known(newest)), versions.into_iter().map(known).collect())
}

/// The recorded entry of a checkpoint, with the time of its first report, or a new one.
fn entry(old: &RLJobStatus, version: Version, now: Timestamp) -> CheckpointStatus {
    let path = format!("{CHECKPOINTS_DIR}/{version}");
    let mut recorded = old.checkpoint.iter().chain(&old.checkpoints);
    recorded.find(|recorded| recorded.path == path).cloned().unwrap_or(CheckpointStatus {
        step: version.step,
        path,
        time: Some(Time(now)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::{at, report};

    #[test]
    fn checkpoints_keep_the_time_of_their_first_report_until_they_are_deleted() {
        let version = |step| Version { step, attempt: 0 };
        let of = |old: &RLJobStatus, versions: &[Version], seconds| {
            let report = CoordinatorStatus {
                checkpoint: versions.last().copied(),
                checkpoints: versions.to_vec(),
                ..report()
            };
            let (checkpoint, checkpoints) = checkpoints(old, Some(&report), at(seconds));
            RLJobStatus { checkpoint, checkpoints, ..RLJobStatus::default() }
        };
        let entry = |step: u32, seconds| CheckpointStatus {
            step,
            path: format!("checkpoints/step-{step}.attempt-0"),
            time: Some(Time(at(seconds))),
        };
        let first = of(&RLJobStatus::default(), &[version(2)], 0);
        let second = of(&first, &[version(2), version(4)], 9);
        assert_eq!(second.checkpoints, [entry(2, 0), entry(4, 9)]);
        assert_eq!(second.checkpoint, Some(entry(4, 9)));
        let third = of(&second, &[version(4), version(6)], 20);
        assert_eq!(third.checkpoints, [entry(4, 9), entry(6, 20)]);
        let unknown = checkpoints(&third, None, at(30));
        assert_eq!(unknown, (third.checkpoint.clone(), third.checkpoints.clone()));
        let older = CoordinatorStatus { checkpoint: Some(version(6)), ..report() };
        let older = checkpoints(&RLJobStatus::default(), Some(&older), at(40));
        assert_eq!(older, (Some(entry(6, 40)), vec![entry(6, 40)]));
    }
}
