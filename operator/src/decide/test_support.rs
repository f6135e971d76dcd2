//! Facts of a run that is training, for table tests.

use jiff::Timestamp;
use rljob_protocol::desired::{EngineEndpoint, SupervisorIdentity};
use rljob_protocol::status::{CoordinatorStatus, Phase};

use super::{Epoch, Facts, Outcome, Recorded, RoleCounts, Roles};

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub fn outcome() -> Outcome {
    Outcome {
        succeeded: true,
        reason: "Completed".to_owned(),
        message: "completed 10 steps and exported the model".to_owned(),
    }
}

pub fn report() -> CoordinatorStatus {
    CoordinatorStatus {
        epoch: Some(3),
        generation: Some(4),
        phase: Phase::Running,
        attempt: 0,
        restarts: 0,
        last_failure: None,
        step: 7,
        total_steps: 10,
        metrics: None,
        evaluation: None,
        supervisors: vec![],
        engines: vec![],
        checkpoint: None,
        checkpoints: Vec::new(),
        unsupported: None,
        download: None,
        reward_outage: None,
        reward_failure: None,
        journal_failure: None,
        tracker_failure: None,
        memory: None,
        requests: None,
        verifiers: None,
        evaluation_engines: vec![],
        reward_engines: vec![],
        teacher_engines: vec![],
        pending_evaluations: None,
        groups: vec![],
        activity: None,
    }
}

pub fn facts() -> Facts {
    let all = |count| RoleCounts { wanted: count, existing: count, ready: count };
    let engine = |index| EngineEndpoint {
        name: format!("sums-inference-{index}"),
        url: format!("https://sums-inference-{index}.sums-inference.lab:30000"),
        uid: None,
    };
    let epoch = Epoch { number: 3, holder: Some("pod-c".to_owned()) };
    Facts {
        suspend: false,
        queue: None,
        generation: 4,
        recorded: Recorded {
            started: true,
            reported: true,
            epoch: epoch.clone(),
            ..Recorded::default()
        },
        epoch,
        coordinator: Some(report()),
        coordinator_identity: Some("pod-c".to_owned()),
        coordinator_unasked: false,
        silence: None,
        directory_in_use: None,
        waiting: Vec::new(),
        incidents: vec![],
        exit: None,
        exits: vec![],
        exits_under_rules: vec![],
        rules_digest: None,
        unsupported: None,
        obstacle: None,
        engine_up_since: Some(at(0)),
        engines: vec![engine(0), engine(1)],
        evaluation_engines: vec![],
        reward_engines: vec![],
        teacher_engines: vec![],
        verifiers: vec![],
        supervisors: vec![SupervisorIdentity {
            name: "sums-trainer-0".to_owned(),
            uid: "pod-t".to_owned(),
        }],
        roles: Roles {
            inference: all(2),
            evaluation: RoleCounts::default(),
            reward: RoleCounts::default(),
            teacher: RoleCounts::default(),
            coordinator: all(1),
            trainer: all(1),
            group: RoleCounts::default(),
            verifier: RoleCounts::default(),
        },
    }
}
