//! The real SGLang 0.5.12 in the pods that the operator renders for users, on the CPU: flags, keys,
//! ports and probes are the operator's own; what a machine without a GPU needs is in the image and
//! in `inference.extraArgs`.
//!
//! It takes minutes: `make e2e-sglang` runs it, and not `make test`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::process::wait_until;
use rljob_tests::{Namespace, sglang};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Run, cluster, steps_done};

const JOBS: &str = include_str!("jobs.yaml");
const ON_SGLANG: &str = include_str!("sglang.yaml");
/// Steps of a job that is to succeed.
const STEPS: u64 = 150;
/// More than a job makes before it is deleted.
const ENDLESS: u64 = 100_000;
/// Bound of the difference between SGLang's log-probabilities and the learner's, in fp32: beyond it
/// the engine samples from other weights.
const MISMATCH: f64 = 1e-3;
/// What SGLang may take to start on a small machine that runs everything: three processes, each of
/// which imports torch.
const START: Duration = Duration::from_secs(900);

#[test]
fn jobs_on_the_real_sglang_go_on_though_engine_pods_servers_and_schedulers_are_lost_with_weights_by_broadcast_and_by_disk()
 {
    let Some(environment) = sglang::environment() else {
        return eprintln!("skipped: SGLang 0.5.12 is not laid out here; `make setup` says why");
    };
    let cluster = cluster();
    let folder = tempfile::tempdir().unwrap();
    cluster.import(&sglang::image(&environment, folder.path()).unwrap()).unwrap();
    let namespace = Namespace::create(cluster, "sglang").unwrap();
    let teacher = JOBS.split("\n---\n").next().unwrap();
    Run::start(cluster, &namespace, teacher, "e2e-sft").wait_for_condition("Succeeded");
    let run = |job, method, replicas, steps| {
        on_sglang(&namespace, &environment, job, method, replicas, steps)
    };
    succeeds(&run("broadcast", "Distributed", 2, STEPS));
    succeeds(&run("disk", "Disk", 1, STEPS));
    goes_on_without_a_scheduler(&run("hangs", "Distributed", 2, ENDLESS));
}

/// Starts a job, and waits until its servers serve.
fn on_sglang<'a>(
    namespace: &'a Namespace,
    environment: &Path,
    job: &'a str,
    method: &str,
    replicas: u32,
    steps: u64,
) -> Run<'a> {
    let values = [
        ("JOB", job),
        ("METHOD", method),
        ("REPLICAS", &replicas.to_string()),
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
    demands_its_key(run);
    run.lose_pod("inference");
    if servers(run).len() == 1 {
        wait_for_servers(run);
    } else {
        // The run goes on with the other one, which is the oldest now.
        run.wait_for_steps(steps_done(&run.directory) + 20);
    }
    cluster().kill_oldest("sglang[.]launch_server").unwrap();
    run.say("a server is killed");
    run.wait_for_condition("Succeeded");
    let status = run.status();
    assert_eq!(status["restarts"], 0, "no learner has failed: {status}");
    assert_eq!(run.steps(), (1..=STEPS).collect::<Vec<_>>(), "every step is recorded once");
    let mismatch = mismatches(run);
    run.say(&format!("mismatch of each step {mismatch:?}"));
    assert!(
        mismatch.iter().all(|mismatch| *mismatch < MISMATCH),
        "SGLang sampled from other weights than the learner's: {mismatch:?}"
    );
    delete(run);
}

fn delete(run: &Run<'_>) {
    run.namespace
        .kubectl
        .run(&["delete", &format!("rljob/{}", run.job), "--cascade=foreground"])
        .unwrap();
}

/// Of each pod, whether its server has passed its startup probe: `true`, `false`, or nothing before
/// there is one.
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
    run.say("all servers serve");
}

/// The oldest server answers, and neither generates anything more nor takes weights: it is found by
/// what it owes, and replaced. The run goes on with the other one.
fn goes_on_without_a_scheduler(run: &Run<'_>) {
    let schedulers = cluster()
        .pod_processes("")
        .into_iter()
        .filter(|process| process.command_line.contains("sglang::scheduler"));
    let oldest = schedulers.min_by_key(|process| process.started).unwrap().pid;
    kill_process(oldest, Signal::STOP).unwrap();
    run.say("a scheduler is stopped");
    run.goes_on();
    let hung = run.wait_for_incident("EngineHung", &format!("{}-inference-", run.job));
    let text = |field: &str| hung[field].as_str().unwrap();
    run.wait_for_successor(&format!("pod/{}", text("pod")), text("uid"));
    wait_for_servers(run);
    run.goes_on();
    delete(run);
}

/// Metrics are there for all; everything else answers 401 without a key.
fn demands_its_key(run: &Run<'_>) {
    let get = |path: &str| {
        run.namespace.kubectl.run(&[
            "get",
            "--raw",
            &format!(
                "/api/v1/namespaces/{}/pods/{}-inference-0:30000/proxy{path}",
                run.namespace.name, run.job
            ),
        ])
    };
    assert!(get("/metrics").unwrap().contains("sglang:"), "no metrics of SGLang");
    let refused = format!("{:#}", get("/model_info").unwrap_err());
    // This is how kubectl says 401.
    assert!(refused.contains("provide credentials"), "{refused}");
}

/// The largest difference between the engine's and the learner's log-probabilities, of each step.
fn mismatches(run: &Run<'_>) -> Vec<f64> {
    let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["mismatchMax"].as_f64().unwrap())
        .collect()
}
