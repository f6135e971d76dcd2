//! Runs on a full disk: a tmpfs in a private mount namespace, which the test fills or enlarges.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use rljob_tests::files::binary;
use rljob_tests::process::run;

use super::{artifacts, baseline};

/// Runs a shell script that may mount file systems.
fn with_mounts(script: &str) -> Output {
    Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .current_dir(&baseline().folder)
        .output()
        .unwrap()
}

/// The checkpoints of `practise`, about 5 MB each, are on a tmpfs of 7 MB in a private mount
/// namespace, which is then enlarged.
#[test]
fn a_full_disk_fails_the_run_which_resumes_from_the_previous_checkpoint_once_there_is_space() {
    let folder = &baseline().folder;
    let runs = folder.join("full");
    let checkpoints = runs.join("default/practise/checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    let copy = [folder.join("baseline/default/imitate"), runs.join("default/imitate")];
    run(Command::new("cp").arg("-a").args(copy)).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=7m tmpfs '{0}' || exit 99
         '{1}' run --file jobs.yaml --dir full --set practise:spec.failurePolicy.maxRestarts=1
         code=$?
         echo complete: '{0}'/*/manifest.json
         mount -o remount,size=70m '{0}' && '{1}' run --file jobs.yaml --dir full; echo then $?
         exit $code",
        checkpoints.display(),
        binary("rljob").unwrap().display()
    );
    let output = with_mounts(&script);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(
        stderr.contains("error: practise failed: ") && stderr.contains("No space left on device"),
        "{stdout}{stderr}"
    );
    assert!(
        stdout.contains(&format!(
            "complete: {}/step-5.attempt-0/manifest.json\n",
            checkpoints.display()
        )),
        "{stdout}"
    );
    assert!(stdout.ends_with("\nthen 0\n"), "{stdout}{stderr}");
    assert!(
        artifacts(&runs) == baseline().artifacts,
        "the weights differ from those of the baseline run"
    );
}

/// The disk of the whole run fills up during `practise`, and is freed once the run has said so.
#[test]
fn a_run_whose_disk_is_full_says_so_and_continues_once_there_is_space() {
    let folder = &baseline().folder;
    fs::create_dir_all(folder.join("filled")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=200m tmpfs filled || exit 99
         cp -a baseline/default/imitate filled/ && mkdir filled/default || exit 98
         mv filled/imitate filled/default/
         '{}' run --file jobs.yaml --dir filled --set practise:spec.failurePolicy.maxRestarts=1000 \
             > filled.log 2>&1 &
         run=$!
         until grep -q '^step  *2/12' filled.log || ! kill -0 $run; do sleep 0.1; done
         cat /dev/zero > filled/filler 2> /dev/null
         for i in $(seq 600); do
             ! grep -q StorageUnavailable filled.log && kill -0 $run && sleep 0.2
         done
         rm filled/filler
         wait $run
         code=$?
         rm -rf filled-copy && cp -a filled filled-copy
         exit $code",
        binary("rljob").unwrap().display()
    );
    let output = with_mounts(&script);
    let log = fs::read_to_string(folder.join("filled.log")).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}\n{log}");
    assert!(log.contains("StorageUnavailable: the coordinator cannot write: "), "{log}");
    assert!(log.contains("is full"), "{log}");
    let copy = artifacts(&folder.join("filled-copy"));
    assert!(copy == baseline().artifacts, "the results differ from those of the baseline\n{log}");
}

/// Writes to `/dev/full` fail like those to a full disk.
#[test]
fn processes_that_cannot_write_their_logs_run_on_with_the_same_result() {
    let folder = &baseline().folder;
    let runs = folder.join("without-logs");
    let logs = runs.join("default/practise/logs");
    fs::create_dir_all(&logs).unwrap();
    let copy = [folder.join("baseline/default/imitate"), runs.join("default/imitate")];
    run(Command::new("cp").arg("-a").args(copy)).unwrap();
    for name in ["coordinator", "inference-0", "inference-1", "trainer-0"] {
        symlink("/dev/full", logs.join(format!("{name}.log"))).unwrap();
    }
    let mut command = Command::new(binary("rljob").unwrap());
    command.args(["run", "--file", "jobs.yaml", "--dir", "without-logs"]).current_dir(folder);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        artifacts(&runs) == baseline().artifacts,
        "the weights differ from those of the baseline run"
    );
}
