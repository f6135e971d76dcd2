//! Hybrid sharding: kills of learners of either trainer pod do not change the result.

use std::fs;

use super::{Victim, with_and_without_kills};

#[test]
#[ignore = "long: make thorough"]
fn kills_do_not_change_the_result_of_replicas_in_two_trainer_pods() {
    let sets = [
        "practise:spec.trainer={replicas: 2, processesPerReplica: 2}",
        "practise:spec.training.sharding=Hybrid",
        // Ranks 0 and 1 of the first pod and rank 2 of the second send weights.
        "practise:spec.inference.replicas=3",
    ];
    let kills = [(3, Victim::Learner(3)), (7, Victim::Learner(0))];
    let (directories, _) = with_and_without_kills("hybrid", &sets, &kills);
    for checkpoint in fs::read_dir(directories[0].join("checkpoints")).unwrap() {
        let manifest = fs::read(checkpoint.unwrap().path().join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["worldSize"], 2, "one replica is written");
    }
}
