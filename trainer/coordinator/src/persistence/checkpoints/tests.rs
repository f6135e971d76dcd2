//! Tests of checkpoints of a run.

use std::path::Path;

use rljob_protocol::checkpoint::{ModelShape, ObjectiveState, OptimizerProgress};
use rljob_tests::S3;

use super::*;
use crate::persistence::mirror::tests::bucket;

fn run_store(run: &tempfile::TempDir) -> RunStore {
    RunStore::Folder(run.path().to_owned())
}

fn checkpoint(run: &Path, name: &str, complete: bool) {
    let folder = run.join(CHECKPOINTS_DIR).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("rank-0.safetensors"), b"x").unwrap();
    if complete {
        std::fs::write(folder.join(MANIFEST), b"{}").unwrap();
    }
}

#[test]
fn the_data_position_is_recorded_once_beside_a_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    let (run_store, version) = (run_store(&run), Version { step: 4, attempt: 0 });
    let folder = whole(run.path(), 4);
    let checkpoint = RunStore::at(&folder, None).unwrap();
    assert_eq!(position(&checkpoint).unwrap(), None, "a run of an earlier release");
    let place = |next_position, passed_over| DataPosition { next_position, passed_over };
    put_position(&run_store, version, &place(19, vec![3, 7])).unwrap();
    put_position(&run_store, version, &place(23, vec![])).unwrap();
    assert_eq!(position(&checkpoint).unwrap(), Some(place(19, vec![3, 7])));
    let path = folder.join(POSITION_FILE);
    for (json, expected) in [
        (r#"{"nextPosition": 19}"#, Some(place(19, vec![]))),
        (r#"{"nextPosition": 19, "passedOver": [7, 3]}"#, None),
        (r#"{"nextPosition": 19, "passedOver": [19]}"#, None),
    ] {
        std::fs::write(&path, json).unwrap();
        assert_eq!(position(&checkpoint).unwrap(), expected, "{json}");
    }
    let found = Verifier::default().usable(&run_store).unwrap();
    assert_eq!(found, Found { usable: BTreeSet::from([version]), rejected: vec![] });
}

/// A checkpoint as a learner leaves it.
fn whole(run: &Path, step: u32) -> std::path::PathBuf {
    let version = Version { step, attempt: 0 };
    checkpoint(run, &version.to_string(), false);
    let folder = run.join(CHECKPOINTS_DIR).join(version.to_string());
    // printf x | sha256sum
    let sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881".to_owned();
    let files = vec![FileEntry { name: "rank-0.safetensors".to_owned(), size: 1, sha256 }];
    let (model, optimizer) = (
        ModelShape { sha256: String::new(), block_numels: vec![], base_sha256: None },
        OptimizerProgress::default(),
    );
    let roles = std::collections::BTreeMap::new();
    let objective = ObjectiveState::default();
    let (format, world_size) = (1, 1);
    let manifest = Manifest {
        format,
        version,
        world_size,
        model,
        optimizer,
        roles,
        objective,
        file_bytes: None,
        files,
    };
    std::fs::write(folder.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
    folder
}

#[test]
fn a_manifest_that_names_a_file_outside_its_folder_is_rejected() {
    let run = tempfile::tempdir().unwrap();
    let folder = whole(run.path(), 4);
    std::fs::write(run.path().join("secret"), b"x").unwrap();
    let manifest = std::fs::read_to_string(folder.join(MANIFEST)).unwrap();
    for name in ["../../secret", "/etc/passwd", "..", "sub/x", ""] {
        let hostile = manifest.replace("rank-0.safetensors", name);
        std::fs::write(folder.join(MANIFEST), hostile).unwrap();
        let found = Verifier::default().usable(&run_store(&run)).unwrap();
        let [rejected] = &found.rejected[..] else { panic!("{name} was accepted") };
        assert_eq!(rejected.detail, format!("`{name}` is not a file of its folder"));
    }
}

#[test]
fn a_torn_or_altered_checkpoint_is_rejected_once_and_the_previous_one_is_used() {
    let run = tempfile::tempdir().unwrap();
    let [_, altered, torn, garbled] = [2, 4, 6, 8].map(|step| whole(run.path(), step));
    let version = |step| Version { step, attempt: 0 };
    let mut verifier = Verifier::default();
    assert_eq!(
        verifier.usable(&run_store(&run)).ok(),
        Some(Found { usable: [2, 4, 6, 8].map(version).into(), rejected: vec![] })
    );

    std::fs::write(altered.join("rank-0.safetensors"), b"y").unwrap();
    std::fs::write(torn.join("rank-0.safetensors"), b"").unwrap();
    std::fs::write(garbled.join(MANIFEST), b"{").unwrap();
    let mut verifier = Verifier::default();
    let found = verifier.usable(&run_store(&run)).unwrap();
    assert_eq!(found.usable, [version(2)].into());
    let details: Vec<(u32, String)> = found
        .rejected
        .into_iter()
        .map(|rejected| {
            (rejected.version.step, rejected.detail.replace(&run.path().display().to_string(), ""))
        })
        .collect();
    let file = |step| format!("`/checkpoints/step-{step}.attempt-0/rank-0.safetensors`");
    let sha256 = "its SHA-256 is \
        a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa, expected \
        2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    assert_eq!(
        details,
        [
            (8, "manifest.json is not understood".to_owned()),
            (6, format!("{} has 0 bytes, expected 1", file(6))),
            (4, format!("{} was altered: {sha256}", file(4))),
        ]
    );
    assert_eq!(
        verifier.usable(&run_store(&run)).ok(),
        Some(Found { usable: [version(2)].into(), rejected: vec![] }),
        "a rejected checkpoint is not read again"
    );
}

#[test]
fn bucket_checkpoints_are_verified_and_an_unavailable_server_rejects_none() {
    let (mut s3, run) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = bucket(&s3, run.path());
    let object = |step: u32, name: &str| format!("{}/{name}", folder(Version { step, attempt: 0 }));
    for step in [2, 4, 6, 8, 10] {
        let files = whole(run.path(), step);
        for name in ["rank-0.safetensors", MANIFEST] {
            bucket.upload(&files.join(name), &object(step, name)).unwrap();
        }
    }
    bucket.remove(&[object(10, MANIFEST), object(8, "rank-0.safetensors")]).unwrap();
    bucket.put(&object(6, "rank-0.safetensors"), vec![]).unwrap();
    bucket.put(&object(4, "rank-0.safetensors"), b"y".to_vec()).unwrap();
    let run_store = RunStore::Bucket(bucket.clone().with_retry_limit(std::time::Duration::ZERO));
    s3.kill().unwrap();
    let mut verifier = Verifier::default();
    assert!(verifier.usable(&run_store).is_err());
    s3.restart().unwrap();
    let found = verifier.usable(&run_store).unwrap();
    let place = |step| format!("`{}`", run_store.place(&object(step, "rank-0.safetensors")));
    let details: Vec<String> =
        found.rejected.iter().map(|rejected| rejected.detail.clone()).collect();
    assert_eq!(
        details[..2],
        [format!("{} is missing", place(8)), format!("{} has 0 bytes, expected 1", place(6))]
    );
    assert!(
        details[2].starts_with(&format!("{} was altered: its SHA-256 is ", place(4))),
        "{details:?}"
    );
    assert_eq!((found.usable.len(), found.rejected.len()), (1, 3));

    assert_eq!(
        prune(&run_store, &found.usable, 2, 1).unwrap(),
        found.usable,
        "rejected checkpoints do not count for retention"
    );
    assert_eq!(
        s3.keys("lab/job/checkpoints/"),
        [MANIFEST, "rank-0.safetensors"].map(|name| format!("lab/job/{}", object(2, name)))
    );
}

#[test]
fn old_and_torn_checkpoints_are_removed_and_the_newest_and_unfinished_are_kept() {
    let run = tempfile::tempdir().unwrap();
    for (name, complete) in [
        ("step-2.attempt-0", true),
        ("step-4.attempt-0", true),
        ("step-4.attempt-1", true),
        ("step-5.attempt-0", false),
        ("step-6.attempt-1", false),
        ("notes", true),
    ] {
        checkpoint(run.path(), name, complete);
    }
    let kept = prune(&run_store(&run), &complete(&run_store(&run)).unwrap(), 2, 1).unwrap();
    assert_eq!(
        kept,
        BTreeSet::from([Version { step: 4, attempt: 0 }, Version { step: 4, attempt: 1 }])
    );
    let mut left: Vec<_> = std::fs::read_dir(run.path().join(CHECKPOINTS_DIR))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["notes", "step-4.attempt-0", "step-4.attempt-1", "step-6.attempt-1"]);
    assert_eq!(complete(&run_store(&run)).unwrap(), kept);
}
