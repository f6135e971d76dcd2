//! `rljob logs --cluster` of real containers: by role, of the container before a restart, and of
//! pods that start while it follows. The pods have a job's labels and print known lines.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rljob_tests::files::{binary, workspace};
use rljob_tests::process::{run, wait_until};
use rljob_tests::{Cluster, Namespace, image};
use serde_json::{Value, json};

/// Time limit of a start or restart of a container on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

const IMAGE: &str = "rljob.local/shell:test";
/// A program that prints a line and runs until its pod is deleted.
const RUN: &str = "echo starts; exec sleep 1000";
/// Exits once; then as above.
const RESTART: &str = "if [ -e /state/a ]; then echo second; exec sleep 1000; fi; \
                       echo first; echo >/state/a; exit 1";

/// Builds an image with a shell and `sleep`.
fn import_shell(cluster: &Cluster) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    for program in ["/bin/sh", "/bin/sleep"] {
        let text = run(Command::new("ldd").arg(program)).unwrap();
        let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([program]) {
            let target = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(file, target).unwrap();
        }
    }
    let config = json!({"Env": ["PATH=/bin"], "User": "65532:65532"});
    let image = image::build(IMAGE, &root, &config, folder.path()).unwrap();
    cluster.import(&image).unwrap();
}

fn pod(role: &str, container: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("sample-{role}-0"),
            "labels": {"rljob.dev/job": "sample", "rljob.dev/role": role},
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": container, "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script],
                "volumeMounts": [{"name": "state", "mountPath": "/state"}],
            }],
            "volumes": [{"name": "state", "emptyDir": {}}],
        },
    })
    .to_string()
}

/// A job that no operator acts on.
fn job() -> String {
    let path = workspace().join("manifests/samples/sft.yaml");
    let text = fs::read_to_string(path).unwrap();
    let mut job: Value = serde_yaml::from_str(&text).unwrap();
    job["metadata"]["name"] = json!("sample");
    job["spec"]["managedBy"] = json!("example.com/other");
    job.to_string()
}

fn logs(cluster: &Cluster, namespace: &Namespace) -> Command {
    let mut command = Command::new(binary("rljob").unwrap());
    command.args(["logs", "--cluster", "--namespace", &namespace.name, "--kubeconfig"]);
    command.arg(cluster.kubeconfig()).arg("sample");
    command
}

/// A running `rljob logs --follow`.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_text(path: &Path, text: &str) {
    wait_until(&format!("the line {text:?}"), LIMIT, || {
        Ok(fs::read_to_string(path)?.lines().any(|line| line == text))
    })
    .unwrap();
}

/// Records the end of the run.
fn end(cluster: &Cluster, namespace: &Namespace) {
    let status = json!({"status": {"conditions": [{
        "type": "Succeeded", "status": "True", "reason": "Completed", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let path =
        format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample/status", namespace.name);
    cluster.api().unwrap().patch(&path, &status).unwrap();
}

#[test]
fn logs_of_a_cluster_are_selected_and_followed_until_the_run_ends() {
    let cluster = Cluster::start(1).unwrap();
    import_shell(&cluster);
    let crd = workspace().join("crds/rljob.yaml").display().to_string();
    cluster.kubectl().run(&["apply", "--server-side", "--filename", &crd]).unwrap();
    cluster.kubectl().wait_for_definition("rljobs.rljob.dev").unwrap();
    let namespace = Namespace::create(&cluster, "logs").unwrap();
    namespace.kubectl.apply(&job()).unwrap();
    namespace.kubectl.apply(&pod("coordinator", "coordinator", RUN)).unwrap();
    namespace.kubectl.apply(&pod("trainer", "trainer", RESTART)).unwrap();
    let of = |arguments: &[&str]| {
        run(logs(&cluster, &namespace).args(arguments)).map_err(|error| error.to_string())
    };
    let both = "sample-coordinator-0 | starts\nsample-trainer-0 | second\n";
    wait_until("the restart", LIMIT, || Ok(of(&[]).is_ok_and(|text| text == both))).unwrap();
    assert_eq!(of(&["trainer"]).unwrap(), "second\n");
    assert_eq!(of(&["trainer-0", "--previous"]).unwrap(), "first\n");
    let unknown = of(&["engine"]).unwrap_err();
    let expected = "no pod or role `engine`; found sample-coordinator-0, sample-trainer-0";
    assert!(unknown.contains(expected), "{unknown}");
    let rewards = of(&["coordinator", "--container", "rewards"]).unwrap_err();
    assert!(rewards.contains("failed to read the log of pod sample-coordinator-0"), "{rewards}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output");
    let mut command = logs(&cluster, &namespace);
    command.arg("--follow").stdin(Stdio::null()).stdout(fs::File::create(&path).unwrap());
    let mut follower = Follower(command.spawn().unwrap());
    wait_for_text(&path, "sample-trainer-0 | second");
    // A pod that is created later, and one that is replaced.
    namespace.kubectl.apply(&pod("inference", "engine", RUN)).unwrap();
    wait_for_text(&path, "sample-inference-0 | starts");
    namespace.kubectl.run(&["delete", "pod/sample-trainer-0"]).unwrap();
    namespace.kubectl.apply(&pod("trainer", "trainer", RESTART)).unwrap();
    wait_for_text(&path, "sample-trainer-0 | first");
    end(&cluster, &namespace);
    namespace.kubectl.run(&["delete", "pods", "--all"]).unwrap();
    let ended =
        wait_until("the end of the follower", LIMIT, || Ok(follower.0.try_wait()?.is_some()));
    let text = fs::read_to_string(&path).unwrap();
    ended.expect(&text);
    assert!(follower.0.wait().unwrap().success(), "{text}");
    let count = |line: &str| text.lines().filter(|found| *found == line).count();
    // Lines once for each container, without the one that exited before the command started; the
    // second pod may be deleted before its second container starts.
    assert_eq!(
        [
            count("sample-coordinator-0 | starts"),
            count("sample-inference-0 | starts"),
            count("sample-trainer-0 | first"),
        ],
        [1, 1, 1],
        "{text}"
    );
    let second = count("sample-trainer-0 | second");
    assert!((1..=2).contains(&second), "{text}");
    assert_eq!(text.lines().count(), 3 + second, "{text}");
}
