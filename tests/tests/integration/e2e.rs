//! Jobs on a real cluster of two nodes, with the operator of manifests/install.yaml and an image of
//! the workspace's binaries, under process and pod failures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORT_DIR, METRICS_FILE};
use rljob_tests::files::workspace;
use rljob_tests::namespace::report;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace, quickstart, rootfs};
use serde_json::{Value, json};

mod agents;
mod alerts;
mod bucket;
mod checkpoints;
mod dashboard;
mod documents;
mod gpus;
mod groups;
mod kueue;
mod logs;
mod monitors;
mod network;
mod pods;
mod preemption;
mod release;
mod rewards;
mod sglang;
mod template;
mod tensorboard;
mod verifiers;
mod waiting;

/// The sample for clusters without GPUs and claims: `sums-sft`, then `sums`.
const SUMS: &str = include_str!("../../../manifests/samples/quickstart-cluster.yaml");
/// Steps of `sums` in tests: more than complete before the last failure.
const STEPS: u64 = 50;
/// Time limit of a step, restart or replacement on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Tests that need both nodes take a read lock; tests that remove a node take the write lock.
static NODES: RwLock<()> = RwLock::new(());

/// The shared cluster: two nodes with the image of install.yaml and one operator.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start(2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
        cluster.import(&image).unwrap();
        install_operator(&cluster);
        cluster
    })
}

fn install_manifest() -> PathBuf {
    workspace().join("manifests/install.yaml")
}

/// Image of the operator's Deployment, also the default of all roles.
fn operator_image() -> String {
    let text = fs::read_to_string(install_manifest()).unwrap();
    let line = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches("- "))
        .find_map(|line| line.strip_prefix("image: "));
    line.expect("install.yaml names no image").trim_matches('"').to_owned()
}

/// Image name as kubelet resolves it: names without a registry are in Docker Hub's library.
fn full_reference(image: &str) -> String {
    if image.contains('/') { image.to_owned() } else { format!("docker.io/library/{image}") }
}

/// A pod that serves a model folder with the embedded engine; ready once the model is loaded.
fn engine_pod(name: &str, host_folder: &Path, model: &str) -> String {
    let command = [
        "/usr/local/bin/rljob-engine",
        "--host=0.0.0.0",
        "--port=30000",
        &format!("--model-path=/model/{model}"),
    ];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "engine",
                "image": operator_image(),
                "imagePullPolicy": "Never",
                "command": command,
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "readinessProbe": {
                    "httpGet": {"path": "/health", "port": 30000}, "periodSeconds": 1,
                },
                "volumeMounts": [{"name": "model", "mountPath": "/model", "readOnly": true}],
            }],
            "volumes": [{"name": "model", "hostPath": {"path": host_folder}}],
        },
    })
    .to_string()
}

/// Number of steps in metrics.jsonl.
fn steps_done(run_directory: &Path) -> u64 {
    fs::read_to_string(run_directory.join(METRICS_FILE)).unwrap_or_default().lines().count() as u64
}

/// A job in a namespace and its run directory.
struct Run<'a> {
    namespace: &'a Namespace,
    job: &'a str,
    manifest: String,
    directory: PathBuf,
    start: Instant,
    /// Time limit of every wait.
    limit: Duration,
}

impl<'a> Run<'a> {
    /// Applies a manifest of e2e/, or [`SUMS`], in the namespace; `job` is the job under test.
    fn start(cluster: &Cluster, namespace: &'a Namespace, text: &str, job: &'a str) -> Self {
        let folder = |name: &str| cluster.shared_folder(name).unwrap();
        let (data, runs) = (folder(&format!("data-{job}")), folder("runs"));
        quickstart::generate(&data, 16_000).unwrap();
        let manifest = [("SHARED", &data), ("RUNS", &runs)]
            .into_iter()
            .chain([("/var/lib/rljob/data", &data), ("/var/lib/rljob/runs", &runs)])
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, &to.to_string_lossy()));
        namespace.kubectl.apply(&manifest).unwrap();
        Self {
            namespace,
            job,
            manifest,
            directory: runs.join(&namespace.name).join(job),
            start: Instant::now(),
            limit: LIMIT,
        }
    }

    fn wait_for_steps(&self, steps: u64) {
        wait_until(&format!("step {steps}"), self.limit, || {
            Ok(steps_done(&self.directory) >= steps)
        })
        .unwrap();
        self.log(&format!("step {steps}"));
    }

    /// Waits until the status has a complete checkpoint of `step` or a later one.
    fn wait_for_checkpoint(&self, step: u64) {
        let is_complete = || Ok(self.status()["checkpoint"]["step"].as_u64() >= Some(step));
        wait_until(&format!("the checkpoint of step {step}"), self.limit, is_complete).unwrap();
        self.log(&format!("the checkpoint of step {step}"));
    }

    fn wait_for_condition(&self, condition: &str) {
        let (condition, job) =
            (format!("--for=condition={condition}"), format!("rljob/{}", self.job));
        self.namespace
            .kubectl
            .run(&["wait", &condition, &job, &format!("--timeout={}s", self.limit.as_secs())])
            .unwrap_or_else(|error| {
                panic!(
                    "{error:#}\n{}",
                    report(&self.namespace.kubectl.in_namespace("rljob-system"))
                );
            });
        self.log(&condition);
    }

    fn wait_for_progress(&self) {
        self.wait_for_steps(steps_done(&self.directory) + 3);
    }

    /// Waits for an incident of a pod whose name starts with `pod` and returns it.
    fn wait_for_incident(&self, reason: &str, pod: &str) -> Value {
        let matches = |incident: &Value| {
            incident["reason"] == reason
                && incident["pod"].as_str().is_some_and(|name| name.starts_with(pod))
        };
        let mut found = None;
        let reported = || {
            found = self.status()["incidents"]
                .as_array()
                .and_then(|incidents| incidents.iter().find(|incident| matches(incident)).cloned());
            Ok(found.is_some())
        };
        wait_until(&format!("{reason} of {pod}"), self.limit, reported).unwrap();
        self.log(&format!("{reason} of {pod}"));
        found.unwrap()
    }

    /// Prints a timestamped event.
    fn log(&self, event: &str) {
        eprintln!("{}: {event} after {:.0} s", self.job, self.start.elapsed().as_secs_f64());
    }

    /// Sends SIGKILL to a learner, as the OOM killer does.
    fn kill_learner(&self) {
        cluster()
            .kill_oldest(&format!(
                "rljob-learner .*--coordinator https://{}-coordinator-0[.]",
                self.job
            ))
            .unwrap();
    }

    /// Force-deletes a pod and waits for its replacement.
    fn lose_pod(&self, role: &str) {
        let kubectl = &self.namespace.kubectl;
        let pod = format!("pod/{}-{role}-0", self.job);
        let before = kubectl.run(&["get", &pod, "--output=jsonpath={.metadata.uid}"]).unwrap();
        kubectl.run(&["delete", &pod, "--grace-period=0", "--force", "--wait=false"]).unwrap();
        self.wait_for_replacement(&pod, &before);
    }

    /// Waits until the pod with this name has a UID other than `before`.
    fn wait_for_replacement(&self, pod: &str, before: &str) {
        let uid = || {
            self.namespace.kubectl.run(&[
                "get",
                pod,
                "--ignore-not-found",
                "--output=jsonpath={.metadata.uid}",
            ])
        };
        wait_until(&format!("the replacement of {pod}"), LIMIT, || {
            uid().map(|after| !after.is_empty() && after != before)
        })
        .unwrap();
        self.log(&format!("{pod} was replaced"));
    }

    fn status(&self) -> Value {
        self.namespace.kubectl.get(&[&format!("rljob/{}", self.job)]).unwrap()["status"].take()
    }

    /// The steps in metrics.jsonl, in file order, without an incomplete last line.
    fn steps(&self) -> Vec<u64> {
        let text = fs::read_to_string(self.directory.join(METRICS_FILE)).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap())
            .collect()
    }
}

#[test]
fn a_job_succeeds_after_losing_a_learner_and_a_pod_of_every_role() {
    let _nodes = NODES.read();
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "team").unwrap();
    let manifest = SUMS.replace("steps: 300", &format!("steps: {STEPS}"));
    let run = Run::start(cluster, &namespace, &manifest, "sums");

    run.wait_for_steps(3);
    run.kill_learner();
    run.wait_for_steps(8);
    run.lose_pod("inference");
    run.wait_for_steps(13);
    run.lose_pod("coordinator");
    run.wait_for_steps(18);
    run.lose_pod("trainer");
    assert!(steps_done(&run.directory) < STEPS, "the job succeeded before the last failure");
    run.wait_for_condition("Succeeded");

    let status = run.status();
    assert_eq!(status["restarts"], 1, "only the killed learner is counted: {status}");
    assert!(
        status["attempt"].as_u64() >= Some(2),
        "the learners of the lost trainer pod were restarted: {status}"
    );
    assert_eq!(status["progress"]["step"], STEPS, "{status}");
    assert_eq!(status["epoch"], 2, "the second coordinator pod has a higher epoch: {status}");
    assert_eq!(run.steps(), (1..=STEPS).collect::<Vec<_>>(), "every step is recorded once");
    // The coordinator completes the files before its pod ends.
    let pods = || namespace.kubectl.run(&["get", "pods", "--output=name"]);
    wait_until("the end of the pods", run.limit, || Ok(pods()?.is_empty())).unwrap();
    let evaluated = (0..STEPS).step_by(15).chain([STEPS]).collect();
    let events = tensorboard::steps(&run.directory);
    assert_eq!(events, [run.steps(), evaluated], "TensorBoard has each step and evaluation once");
    used_both_nodes(&namespace);
    export_loads(&run);
    run.log("the export serves requests");
    deletion_leaves_nothing(&run);
    run.log("all objects are deleted");
    recreated_job_is_still_succeeded(&run);
}

#[test]
fn a_suspended_job_releases_its_pods_and_resumes_at_its_step_with_more_learners() {
    let _nodes = NODES.read();
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "pause").unwrap();
    let run = Run::start(cluster, &namespace, include_str!("e2e/suspend.yaml"), "pause");
    let patch = |spec: Value| {
        namespace
            .kubectl
            .run(&[
                "patch",
                "rljob/pause",
                "--type=merge",
                "--patch",
                &json!({"spec": spec}).to_string(),
            ])
            .unwrap()
    };
    let suspended = || {
        patch(json!({"suspend": true}));
        run.wait_for_condition("Suspended");
        assert_eq!(namespace.kubectl.run(&["get", "pods", "--output=name"]).unwrap(), "");
        let (status, steps) = (run.status(), steps_done(&run.directory));
        assert_eq!(
            status["checkpoint"]["step"], steps,
            "the last step is in a checkpoint: {status}"
        );
        let manifest = run
            .directory
            .join(status["checkpoint"]["path"].as_str().unwrap())
            .join("manifest.json");
        let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
        (steps, manifest["worldSize"].clone())
    };

    run.wait_for_steps(5);
    let (steps, learners) = suspended();
    assert_eq!(learners, 1);
    patch(json!({"suspend": false, "trainer": {"processesPerReplica": 2}}));
    run.wait_for_steps(steps + 5);
    assert_eq!(suspended().1, 2, "edited and resumed in one patch");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    assert_eq!(run.status()["restarts"], 0, "no restart is counted");
}

fn install_operator(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    kubectl.run(&["apply", "--filename", &install_manifest().display().to_string()]).unwrap();
    let ready = kubectl.in_namespace("rljob-system").run(&[
        "wait",
        "--for=condition=Available",
        "deployments",
        "--all",
        "--timeout=120s",
    ]);
    if let Err(error) = ready
        .and_then(|_| rljob_tests::chaos::allow_host_path(&kubectl.in_namespace("rljob-system")))
    {
        panic!("{error:#}\n{}", report(&kubectl.in_namespace("rljob-system")));
    }
}

/// The scheduler spreads the pods of a StatefulSet over nodes.
fn used_both_nodes(namespace: &Namespace) {
    let events = namespace
        .kubectl
        .run(&[
            "get",
            "events",
            "--field-selector=reason=Scheduled",
            "--output=jsonpath={.items[*].message}",
        ])
        .unwrap();
    for node in ["node-1", "node-2"] {
        assert!(events.contains(node), "no pod ran on {node}: {events}");
    }
}

/// A new engine serves the export and answers a sum with digits.
fn export_loads(run: &Run) {
    let export = run.directory.join(EXPORT_DIR);
    assert!(export.join(EXPORT_COMPLETE_FILE).is_file(), "{} is not complete", export.display());
    let kubectl = &run.namespace.kubectl;
    kubectl.apply(&engine_pod("export", &run.directory, EXPORT_DIR)).unwrap();
    kubectl.run(&["wait", "--for=condition=Ready", "pod/export", "--timeout=120s"]).unwrap();
    let path =
        format!("/api/v1/namespaces/{}/pods/export:30000/proxy/generate", run.namespace.name);
    // The vocabulary is two special tokens, ten digits, plus and equals. The prompt is "12+34=",
    // and the teacher's answers have three digits.
    let prompt = [3, 4, 12, 5, 6, 13];
    let sampling = json!({
        "max_new_tokens": 3, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [],
        "ignore_eos": false, "skip_special_tokens": true,
    });
    let request = json!({
        "rid": "sum", "input_ids": prompt, "sampling_params": sampling, "return_logprob": false,
    });
    let answer = kubectl
        .run_with_input(&["create", "--raw", &path, "--filename=-"], &request.to_string())
        .unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let digits: Vec<u64> = answer["output_ids"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .filter(|token| (2..12).contains(token))
        .collect();
    assert_eq!(digits.len(), 3, "{answer}");
    kubectl.run(&["delete", "pod/export", "--grace-period=0", "--force"]).unwrap();
}

/// Garbage collection deletes the children; the operator sets no finalizer.
fn deletion_leaves_nothing(run: &Run) {
    let kubectl = &run.namespace.kubectl;
    kubectl.run(&["delete", &format!("rljob/{}", run.job), "--wait"]).unwrap();
    let kinds =
        "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
    let selector = format!("--selector=rljob.dev/job={}", run.job);
    let left = || kubectl.run(&["get", kinds, &selector, "--output=name"]);
    wait_until("the job's objects to be deleted", LIMIT, || Ok(left()?.trim().is_empty())).unwrap();
}

/// Recreates the job, whose run directory still exists.
fn recreated_job_is_still_succeeded(run: &Run) {
    run.namespace.kubectl.apply(&run.manifest).unwrap();
    run.wait_for_condition("Succeeded");
    let status = run.status();
    assert_eq!(
        (&status["progress"]["step"], &status["restarts"]),
        (&json!(STEPS), &json!(0)),
        "{status}"
    );
    assert_eq!(run.steps().len() as u64, STEPS, "a finished run repeats no step");
}
