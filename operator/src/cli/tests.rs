//! Tests of `rljob validate`.

use super::test_support::{arguments, validated};
use super::*;
use crate::validate::test_support::MINIMAL;

#[test]
fn with_local_what_a_run_needs_on_this_machine_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    let text = MINIMAL
        .replace("/models/", "")
        .replace("inference: {replicas: 2}", "inference: {replicas: 2, sglang: {}}");
    std::fs::write(&path, text).unwrap();
    let local = |change: &dyn Fn(&mut ValidateArgs)| {
        let mut arguments = arguments(&[&path]);
        (arguments.local, arguments.dir) = (true, folder.path().join("runs"));
        change(&mut arguments);
        validated(&arguments)
    };
    assert!(validated(&arguments(&[&path])).is_ok());
    let error = local(&|_| ()).unwrap_err();
    assert!(error.contains("pass --engine-command"), "{error}");
    assert!(error.contains("train.jsonl does not exist"), "{error}");
    let command = |arguments: &mut ValidateArgs| {
        arguments.engine_command = Some("python3 -m sglang.launch_server".to_owned());
    };
    let error = local(&command).unwrap_err();
    assert!(error.contains("tiny is not a folder"), "{error}");
    assert!(error.contains("train.jsonl does not exist"), "{error}");
    let with_data = |arguments: &mut ValidateArgs| {
        command(arguments);
        arguments.data = true;
    };
    assert_eq!(local(&with_data).unwrap_err(), error, "each missing file is named once");
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    for file in ["tiny/config.json", "tiny/tokenizer.json", "train.jsonl"] {
        std::fs::write(folder.path().join(file), "{}").unwrap();
    }
    let error = local(&command).unwrap_err();
    assert!(error.contains("tiny/config.json sets no max_position_embeddings"), "{error}");
    let config = r#"{"max_position_embeddings": 64, "vocab_size": 16}"#;
    std::fs::write(folder.path().join("tiny/config.json"), config).unwrap();
    let error = local(&command).unwrap_err();
    assert!(error.contains("tiny has no model.safetensors"), "{error}");
    std::fs::write(folder.path().join("tiny/model.safetensors"), "").unwrap();
    let error = local(&command).unwrap_err();
    assert!(error.contains("tiny has no chat template"), "{error}");
    std::fs::write(folder.path().join("tiny/chat_template.jinja"), "").unwrap();
    let error = local(&|arguments| {
        command(arguments);
        arguments.dir = folder.path().join("train.jsonl/runs");
    });
    let error = error.unwrap_err();
    assert!(error.contains("train.jsonl: not a folder"), "{error}");
    let mut arguments = arguments(&[&path]);
    (arguments.local, arguments.dir) = (true, folder.path().join("runs"));
    command(&mut arguments);
    arguments.check_local(&path).unwrap();
    assert!(!folder.path().join("runs").exists(), "a check creates nothing");
}

#[test]
fn what_keeps_a_job_from_a_cluster_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    let text = MINIMAL
        .replace("/models/tiny", "tiny")
        .replace(
            "persistentVolumeClaim: {claimName: runs, subPath: team-a}",
            "hostPath: {path: /r}",
        )
        .replace("{processesPerReplica: 2}", "{resources: {limits: {nvidia.com/gpu: 1}}}");
    std::fs::write(&path, text).unwrap();
    let lines = validated(&arguments(&[&path])).unwrap();
    let expected = [
        "spec.model.path: `tiny` is relative: only `rljob run` accepts such a path; set one in \
            a volume of spec.volumes or of the run store",
        "spec.storage.hostPath: the operator rejects hostPath: it gives access to the files of \
            nodes; start the operator with --allow-host-path, or use another volume",
        "spec.trainer.resources.requests: has no memory, while the role has GPUs: the scheduler \
            reserves 1Gi, and pods that use more are evicted first when memory of their node is \
            short",
        "spec.trainer.image: is not set: the operator's default image has no CUDA, unless it \
            was built with Containerfile.cuda",
    ];
    let file = path.display();
    let mut expected: Vec<String> =
        expected.iter().map(|warning| format!("{file}: warning: rljob sums: {warning}")).collect();
    expected.push(format!("{file}: rljob sums is valid"));
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn fields_are_set_before_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    std::fs::write(&path, MINIMAL).unwrap();
    let set = |set: &str| {
        let arguments = ValidateArgs { set: vec![set.to_owned()], ..arguments(&[&path]) };
        validated(&arguments)
    };
    let at = path.display();
    assert_eq!(
        set("spec.training.steps=0"),
        Err(format!("{at}: spec.training.steps: must be at least 1, found 0"))
    );
    // The file has none of these fields.
    let volume = "spec.volumes[1]={name: a, mountPath: /a, hostPath: {path: /a}}";
    for field in ["spec.failurePolicy.maxRestarts=3", volume] {
        set(field).unwrap_or_else(|error| panic!("{field}: {error}"));
    }
    for field in ["spec.restarts", "metadata.nodes"] {
        let error = set(&format!("{field}=3")).unwrap_err();
        let start = format!("{at}: {field}: unknown field; expected one of a");
        assert!(error.starts_with(&start), "{error}");
    }
}

#[test]
fn problems_of_all_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (good, bad, missing) = (
        file("good", MINIMAL),
        file("bad", &MINIMAL.replace("steps: 10", "steps: 0")),
        folder.path().join("missing"),
    );
    let validate = |files: &[&PathBuf]| validated(&arguments(files));
    assert_eq!(validate(&[&good]), Ok(format!("{}: rljob sums is valid", good.display())));
    let problems = [
        format!("failed to read {}: No such file or directory (os error 2)", missing.display()),
        format!("{}: line 12: spec.training.steps: must be at least 1, found 0", bad.display()),
    ];
    assert_eq!(validate(&[&missing, &good, &bad]), Err(problems.join("\n")));
}
