//! A job on a real cluster of two nodes: operator from manifests/install.yaml, image of our binaries, and crashes in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR, METRICS_FILE};
use rljob_tests::files::{kubernetes, workspace};
use rljob_tests::namespace::report;
use rljob_tests::process::{run, wait_until};
use rljob_tests::{Cluster, Namespace, rootfs};
use serde_json::{Value, json};

/// Steps of the second job in e2e/jobs.yaml.
const STEPS: u64 = 30;
/// What a step, a restart or a replacement may take on a small machine that runs everything.
const LIMIT: Duration = Duration::from_secs(300);

/// Two nodes that hold the image under the name that install.yaml gives it.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start(2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
        cluster.import(&image).unwrap();
        cluster
    })
}

fn install_manifest() -> PathBuf {
    workspace().join("manifests/install.yaml")
}

/// The image of the operator's Deployment, which is the default of every role too.
fn operator_image() -> String {
    let text = fs::read_to_string(install_manifest()).unwrap();
    let line = text.lines().map(|line| line.trim_start().trim_start_matches("- ")).find_map(|line| line.strip_prefix("image: "));
    line.expect("install.yaml names no image").trim_matches('"').to_owned()
}

/// The name by which kubelet asks for an image: without a registry's host it means Docker Hub's library.
fn full_reference(image: &str) -> String {
    if image.contains('/') { image.to_owned() } else { format!("docker.io/library/{image}") }
}

/// The quick start's model folder and data, in a folder that every node sees.
fn make_data(folder: &Path) {
    run(Command::new("python3").arg(workspace().join("manifests/samples/quickstart/make_data.py")).arg(folder)).unwrap();
}

/// A pod that serves a model folder with the embedded engine; Ready once the model is loaded.
fn engine_pod(name: &str, host_folder: &Path, model: &str, load_format: &str) -> String {
    let command =
        ["/usr/local/bin/rljob-engine", "--host=0.0.0.0", "--port=30000", &format!("--model-path=/model/{model}"), &format!("--load-format={load_format}")];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "engine",
                "image": operator_image(),
                "imagePullPolicy": "Never",
                "command": command,
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "readinessProbe": {"httpGet": {"path": "/health", "port": 30000}, "periodSeconds": 1},
                "volumeMounts": [{"name": "model", "mountPath": "/model", "readOnly": true}],
            }],
            "volumes": [{"name": "model", "hostPath": {"path": host_folder}}],
        },
    })
    .to_string()
}

/// Lines of metrics.jsonl: steps that the learners have reported.
fn steps_done(run_directory: &Path) -> u64 {
    fs::read_to_string(run_directory.join(METRICS_FILE)).unwrap_or_default().lines().count() as u64
}

/// A job in a namespace, its run directory, and the crashes it must survive.
struct Run<'a> {
    namespace: &'a Namespace,
    directory: PathBuf,
    start: Instant,
}

impl Run<'_> {
    fn wait_for_steps(&self, steps: u64) {
        wait_until(&format!("step {steps}"), LIMIT, || Ok(steps_done(&self.directory) >= steps)).unwrap();
        self.say(&format!("step {steps}"));
    }

    /// One line a stage, so that a log shows where the time went.
    fn say(&self, event: &str) {
        eprintln!("e2e: {event} after {:.0} s", self.start.elapsed().as_secs_f64());
    }

    /// Deletes a pod without grace, as a lost node would, and waits for its successor.
    fn lose_pod(&self, role: &str) {
        let kubectl = &self.namespace.kubectl;
        let selector = format!("--selector=rljob.dev/job=e2e,rljob.dev/role={role}");
        let uid = |pod: &str| kubectl.run(&["get", pod, "--output=jsonpath={.metadata.uid}"]);
        let pod = kubectl.run(&["get", "pods", &selector, "--output=name"]).unwrap().lines().next().expect("the role has no pod").to_owned();
        let before = uid(&pod).unwrap();
        kubectl.run(&["delete", &pod, "--grace-period=0", "--force", "--wait=false"]).unwrap();
        wait_until(&format!("the successor of {pod}"), LIMIT, || uid(&pod).map(|after| after != before)).unwrap();
        self.say(&format!("{pod} was deleted and has a successor"));
    }

    fn status(&self) -> Value {
        self.namespace.kubectl.get(&["rljob/e2e"]).unwrap()["status"].clone()
    }
}

#[test]
fn an_engine_runs_as_an_ordinary_user_on_a_read_only_root() {
    let folder = cluster().shared_folder("engine").unwrap();
    make_data(&folder);
    let namespace = Namespace::create(cluster(), "engine").unwrap();
    namespace.kubectl.apply(&engine_pod("engine", &folder, "model", "dummy")).unwrap();
    namespace.kubectl.run(&["wait", "--for=condition=Ready", "pod/engine", "--timeout=120s"]).unwrap();
}

#[test]
fn a_job_succeeds_on_two_nodes_though_a_learner_an_engine_and_its_coordinator_are_lost() {
    let cluster = cluster();
    let shared = cluster.shared_folder("e2e").unwrap();
    make_data(&shared);
    let runs = cluster.shared_folder("runs").unwrap();
    install_operator(cluster);

    let namespace = Namespace::create(cluster, "team").unwrap();
    let kubectl = &namespace.kubectl;
    let job = include_str!("e2e/jobs.yaml").replace("SHARED", &shared.display().to_string()).replace("RUNS", &runs.display().to_string());
    kubectl.apply(&job).unwrap();
    let run = Run { namespace: &namespace, directory: runs.join(&namespace.name).join("e2e"), start: Instant::now() };

    run.wait_for_steps(3);
    cluster.kill_oldest("rljob-learner").unwrap();
    run.wait_for_steps(8);
    run.lose_pod("inference");
    run.wait_for_steps(13);
    run.lose_pod("coordinator");
    assert!(steps_done(&run.directory) < STEPS, "the job was through before everything was killed");
    kubectl.run(&["wait", "--for=condition=Succeeded", "rljob/e2e", "--timeout=600s"]).unwrap_or_else(|error| {
        panic!("{error:#}\n{}", report(&cluster.kubectl().in_namespace("rljob-system")));
    });

    run.say("success");

    let status = run.status();
    assert_eq!(status["restarts"], 1, "only the killed learner counts: {status}");
    assert_eq!(status["progress"]["step"], STEPS, "{status}");
    assert_eq!(status["epoch"], 2, "the second coordinator pod has a higher epoch: {status}");
    let steps: Vec<u64> = lines(&run.directory.join(METRICS_FILE)).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "every step is recorded once");
    used_both_nodes(&namespace);
    export_loads(&run);
    deletion_leaves_nothing(&namespace);
}

fn install_operator(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    kubectl.run(&["apply", "--filename", &install_manifest().display().to_string()]).unwrap();
    let ready = kubectl.in_namespace("rljob-system").run(&["wait", "--for=condition=Available", "deployments", "--all", "--timeout=120s"]);
    if let Err(error) = ready {
        panic!("{error:#}\n{}", report(&kubectl.in_namespace("rljob-system")));
    }
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The scheduler spreads the pods of a StatefulSet; events say where they were.
fn used_both_nodes(namespace: &Namespace) {
    let events = namespace.kubectl.run(&["get", "events", "--field-selector=reason=Scheduled", "--output=jsonpath={.items[*].message}"]).unwrap();
    for node in ["node-1", "node-2"] {
        assert!(events.contains(node), "nothing ran on {node}: {events}");
    }
}

fn export_loads(run: &Run) {
    let export = run.directory.join(EXPORT_DIR);
    assert!(export.join(EXPORT_COMPLETE_FILE).is_file(), "{} is not complete", export.display());
    run.namespace.kubectl.apply(&engine_pod("export", &run.directory, EXPORT_DIR, "auto")).unwrap();
    run.namespace.kubectl.run(&["wait", "--for=condition=Ready", "pod/export", "--timeout=120s"]).unwrap();
    run.namespace.kubectl.run(&["delete", "pod/export", "--grace-period=0", "--force"]).unwrap();
}

/// Owner references do it: the operator has no finalizer.
fn deletion_leaves_nothing(namespace: &Namespace) {
    namespace.kubectl.run(&["delete", "rljob/e2e", "--wait"]).unwrap();
    let kinds = "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
    let left = || namespace.kubectl.run(&["get", kinds, "--selector=rljob.dev/job=e2e", "--output=name"]);
    wait_until("the job's objects to go", LIMIT, || Ok(left()?.trim().is_empty())).unwrap();
}

#[test]
fn the_operator_may_not_read_secrets() {
    let cluster = cluster();
    install_operator(cluster);
    let user = "--as=system:serviceaccount:rljob-system:rljob-operator";
    let may = |verb: &str, resource: &str| {
        let answer = Command::new(kubernetes("kubectl").unwrap())
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["auth", "can-i", verb, resource, "--namespace=default", user])
            .output()
            .unwrap();
        String::from_utf8_lossy(&answer.stdout).trim() == "yes"
    };
    let rights =
        [("create", "statefulsets.apps"), ("create", "secrets"), ("get", "secrets"), ("list", "secrets"), ("create", "rljobs.rljob.dev"), ("get", "nodes")];
    let seen: Vec<bool> = rights.iter().map(|(verb, resource)| may(verb, resource)).collect();
    assert_eq!(seen, [true, true, false, false, false, false], "{rights:?}");
}
