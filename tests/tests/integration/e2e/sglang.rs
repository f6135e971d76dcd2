//! The real SGLang 0.5.12 on the CPU in pods that the operator renders, with its flags, keys, ports
//! and probes. Settings for machines without a GPU are in the image and in the job's extra
//! arguments.
//!
//! Takes minutes: `make e2e-sglang` runs it, `make test` does not.

use std::fs;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::files::{self, required};
use rljob_tests::process::wait_until;
use rljob_tests::{Namespace, sglang};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Run, SUMS, cluster, steps_done};

const ON_SGLANG: &str = include_str!("sglang.yaml");
/// Steps of the jobs that run to success.
const STEPS: u64 = 150;
/// Steps of the job whose engine spans pods.
const SPANNING_STEPS: u64 = 40;
/// More steps than a job completes before it is deleted.
const ENDLESS: u64 = 100_000;
/// Bound on the difference between SGLang's and the learner's log-probabilities in fp32. A larger
/// difference means that the engine samples from other weights.
const MISMATCH: f64 = 1e-3;
/// Time limit of SGLang's start on a loaded machine; each of its three processes imports torch.
const START: Duration = Duration::from_secs(900);

#[test]
fn jobs_on_sglang_survive_the_loss_of_pods_servers_and_schedulers() {
    let Some(environment) = required(files::sglang()) else { return };
    let namespace = with_trained_model(&environment, "sglang");
    let run = |job, method, replicas, steps| {
        on_sglang(&namespace, &environment, job, method, (replicas, 1), steps)
    };
    succeeds(&run("broadcast", "Distributed", 2, STEPS));
    succeeds(&run("disk", "Disk", 1, STEPS));
    continues_without_a_scheduler(&run("hangs", "Distributed", 2, ENDLESS));
}

/// Weights are broadcast to the ranks of both pods: a rank without them would change the
/// log-probabilities.
#[test]
fn an_engine_that_spans_pods_trains_and_is_replaced_with_all_of_them() {
    let Some(environment) = required(files::sglang()) else { return };
    let namespace = with_trained_model(&environment, "spanning");
    let job = "spanning";
    let run = on_sglang(&namespace, &environment, job, "Distributed", (1, 2), SPANNING_STEPS);
    let pods = [0, 1].map(|ordinal| format!("pod/{job}-inference-{ordinal}"));
    let uid = |pod: &String| {
        namespace.kubectl.run(&["get", pod, "--output=jsonpath={.metadata.uid}"]).unwrap()
    };
    let before = pods.each_ref().map(uid);
    namespace.kubectl.run(&["delete", &pods[1], "--grace-period=0", "--force"]).unwrap();
    for (pod, before) in pods.iter().zip(&before) {
        run.wait_for_replacement(pod, before);
    }
    run.wait_for_incident("EngineIncomplete", &format!("{job}-inference-0"));
    wait_for_servers(&run);
    run.wait_for_condition("Succeeded");
    assert_eq!(run.status()["restarts"], 0, "no learner has failed");
    assert_eq!(run.steps(), (1..=SPANNING_STEPS).collect::<Vec<_>>());
    let mismatch = mismatches(&run);
    run.log(&format!("mismatch of each step {mismatch:?}"));
    assert!(mismatch.iter().all(|mismatch| *mismatch < MISMATCH), "{mismatch:?}");
    delete(&run);
}

/// A namespace with the finished job `sums-sft`, whose export other jobs train.
fn with_trained_model(environment: &Path, name: &str) -> Namespace {
    static IMPORTED: Once = Once::new();
    let cluster = cluster();
    IMPORTED.call_once(|| {
        let folder = tempfile::tempdir().unwrap();
        cluster.import(&sglang::image(environment, folder.path()).unwrap()).unwrap();
    });
    let namespace = Namespace::create(cluster, name).unwrap();
    let teacher = SUMS.split("\n---\n").next().unwrap();
    Run::start(cluster, &namespace, teacher, "sums-sft").wait_for_condition("Succeeded");
    namespace
}

/// Starts a job with `replicas` engines of `pods` pods and waits until its servers are up.
fn on_sglang<'a>(
    namespace: &'a Namespace,
    environment: &Path,
    job: &'a str,
    method: &str,
    (replicas, pods): (u32, u32),
    steps: u64,
) -> Run<'a> {
    let values = [
        ("JOB", job),
        ("METHOD", method),
        ("REPLICAS", &replicas.to_string()),
        ("PODS", &pods.to_string()),
        ("CORES", if pods == 1 { "all" } else { "0|1" }),
        ("STEPS", &steps.to_string()),
        ("ENVIRONMENT", &environment.display().to_string()),
        ("MOUNT", sglang::MOUNT),
        ("IMAGE", sglang::IMAGE),
        ("FLAGS", sglang::FLAGS),
    ];
    let manifest = values
        .into_iter()
        .fold(ON_SGLANG.to_owned(), |text, (name, value)| text.replace(name, value));
    let run = Run { limit: START, ..Run::start(cluster(), namespace, &manifest, job) };
    wait_for_servers(&run);
    run.wait_for_steps(1);
    run
}

fn succeeds(run: &Run<'_>) {
    requires_its_key(run);
    run.lose_pod("inference");
    if servers(run).len() == 1 {
        wait_for_servers(run);
    } else {
        // The run continues with the other server, now the oldest.
        run.wait_for_steps(steps_done(&run.directory) + 20);
    }
    cluster().kill_oldest("sglang[.]launch_server").unwrap();
    run.log("a server is killed");
    run.wait_for_condition("Succeeded");
    let status = run.status();
    assert_eq!(status["restarts"], 0, "no learner has failed: {status}");
    assert_eq!(run.steps(), (1..=STEPS).collect::<Vec<_>>(), "every step is recorded once");
    let mismatch = mismatches(run);
    run.log(&format!("mismatch of each step {mismatch:?}"));
    assert!(
        mismatch.iter().all(|mismatch| *mismatch < MISMATCH),
        "SGLang and the learner used different weights: {mismatch:?}"
    );
    delete(run);
}

fn delete(run: &Run<'_>) {
    run.namespace
        .kubectl
        .run(&["delete", &format!("rljob/{}", run.job), "--cascade=foreground"])
        .unwrap();
}

/// For each pod, whether its startup probe has succeeded: `true`, `false`, or empty before the
/// container exists.
fn servers(run: &Run<'_>) -> Vec<String> {
    let selector = format!("--selector=rljob.dev/job={},rljob.dev/role=inference", run.job);
    let a_line_each =
        "--output=jsonpath={range .items[*]}{.status.containerStatuses[0].started}{\"\\n\"}{end}";
    run.namespace
        .kubectl
        .run(&["get", "pods", &selector, a_line_each])
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn wait_for_servers(run: &Run<'_>) {
    let all = |servers: Vec<String>| {
        !servers.is_empty() && servers.iter().all(|started| started == "true")
    };
    wait_until("SGLang to serve in all pods", START, || Ok(all(servers(run)))).unwrap();
    run.log("all servers serve");
}

/// Stops the scheduler of the oldest server, which still responds but neither generates nor updates
/// weights. The coordinator detects it by its pending requests, and it is replaced; the run
/// continues with the other server.
fn continues_without_a_scheduler(run: &Run<'_>) {
    let schedulers = cluster()
        .pod_processes("")
        .into_iter()
        .filter(|process| process.command_line.contains("sglang::scheduler"));
    let oldest = schedulers.min_by_key(|process| process.started).unwrap().pid;
    kill_process(oldest, Signal::STOP).unwrap();
    run.log("a scheduler is stopped");
    run.wait_for_progress();
    let hung = run.wait_for_incident("EngineHung", &format!("{}-inference-", run.job));
    let text = |field: &str| hung[field].as_str().unwrap();
    run.wait_for_replacement(&format!("pod/{}", text("pod")), text("uid"));
    wait_for_servers(run);
    run.wait_for_progress();
    delete(run);
}

/// `/metrics` requires no key; every other path responds with 401.
fn requires_its_key(run: &Run<'_>) {
    let get = |path: &str| {
        run.namespace.kubectl.run(&[
            "get",
            "--raw",
            &format!(
                "/api/v1/namespaces/{}/pods/https:{}-inference-0:30000/proxy{path}",
                run.namespace.name, run.job
            ),
        ])
    };
    assert!(get("/metrics").unwrap().contains("sglang:"), "no metrics of SGLang");
    let rejection = format!("{:#}", get("/model_info").unwrap_err());
    // kubectl's message for 401.
    assert!(rejection.contains("provide credentials"), "{rejection}");
}

/// Largest difference between the engine's and the learner's log-probabilities of each step.
fn mismatches(run: &Run<'_>) -> Vec<f64> {
    let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["mismatchMax"].as_f64().unwrap())
        .collect()
}
