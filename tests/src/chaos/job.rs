//! Execution of one job: create, inject the faults of its schedule, wait for success, compare with
//! the baseline, delete.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rljob_crds::names::EXPORT_DIR;
use serde_json::Value;

use super::Summary;
use super::faults::Fault;
use super::monitor::Monitor;
use super::results::RunResults;
use super::schedule::{Injection, Schedule};
use super::testbed::{JOB, Testbed};
use super::workload::Workload;
use crate::process::wait_until;

/// Time limit of the end of pods and objects.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a job without faults, on a machine that runs several tests.
const RUN_LIMIT: Duration = Duration::from_secs(1200);
/// Period without writes that is required of a succeeded job.
const IDLE_TIME: Duration = Duration::from_secs(3);
const YAML: &str = include_str!("job.yaml");

/// The documents of job.yaml: the SFT job that trains the initial model, and the job under chaos
/// of a workload.
fn manifests(testbed: &Testbed, workload: Workload) -> Result<(String, String)> {
    let text = YAML
        .replace("DATA", &testbed.data.display().to_string())
        .replace("RUNS", &testbed.runs().display().to_string());
    text.split_once("---\n")
        .map(|(model, job)| (model.to_owned(), testbed.engine.configure(workload.configure(job))))
        .context("job.yaml has two documents")
}

/// Trains the initial model.
pub(super) fn model(testbed: &Testbed) -> Result<()> {
    succeeds(testbed, "model", &manifests(testbed, Workload::Completions)?.0)?;
    let export = testbed.runs().join("model/imitate").join(EXPORT_DIR);
    let imitated = testbed.data.join("imitated");
    fs::create_dir(&imitated)?;
    for file in fs::read_dir(export)? {
        let file = file?;
        fs::copy(file.path(), imitated.join(file.file_name()))?;
    }
    Ok(())
}

/// Runs the job of a workload without faults.
pub(super) fn baseline(testbed: &Testbed, workload: Workload) -> Result<RunResults> {
    let namespace = format!("baseline-{}", workload.name());
    succeeds(testbed, &namespace, &manifests(testbed, workload)?.1)?;
    RunResults::of(&testbed.run_directory())
}

/// Runs a job to success in a new namespace and deletes it.
fn succeeds(testbed: &Testbed, namespace: &str, manifest: &str) -> Result<()> {
    testbed.use_namespace(namespace)?;
    let kubectl = testbed.cluster.kubectl().in_namespace(namespace);
    kubectl.apply(manifest)?;
    let limit = format!("--timeout={}s", RUN_LIMIT.as_secs());
    kubectl
        .run(&["wait", "--for=condition=Succeeded", "rljobs", "--all", &limit])
        .with_context(|| testbed.state())?;
    kubectl.run(&["delete", "rljobs", "--all", "--cascade=foreground"]).map(drop)
}

/// Runs the job with the fault schedule of a seed.
pub(super) fn run_with_faults(
    testbed: &Testbed,
    seed: u64,
    faults: &[&'static Fault],
    baseline: Option<&RunResults>,
) -> Result<Summary> {
    let namespace = format!("chaos-{seed}");
    testbed.use_namespace(&namespace)?;
    let workload = Workload::of(seed, faults);
    let (_, manifest) = manifests(testbed, workload)?;
    // Alternates the weight-sync method, and pruning of the journal.
    let manifest = if seed.is_multiple_of(2) {
        manifest.replace(
            "replicas: 2}\n  checkpoint",
            "replicas: 2}\n  weightSync: {method: Distributed}\n  checkpoint",
        )
    } else {
        manifest
    };
    let manifest = if seed.is_multiple_of(3) {
        manifest.replace("keepLast: 100", "keepLast: 2")
    } else {
        manifest
    };
    testbed.cluster.kubectl().in_namespace(&namespace).apply(&manifest)?;

    let mut monitor = Monitor::default();
    let injections = Schedule::new(seed, testbed, workload, faults).play(testbed, &mut monitor);
    await_end(testbed, &mut monitor);
    monitor.check_restarts(
        injections.iter().filter(|injection| injection.fault.may_count_restart).count(),
    );
    if monitor.succeeded() {
        monitor.record(RunResults::of(&testbed.run_directory()).map_or_else(
            |error| vec![format!("{error:#}")],
            |results| results.differences(baseline),
        ));
        check_idle(testbed, &mut monitor);
    }
    let violations = monitor.violations().len();
    if violations > 0 {
        report_violations(testbed, seed, &injections, &monitor);
    }
    remove(testbed, &namespace, &mut monitor)?;
    let mut summary =
        Summary { violations: monitor.violations().len(), jobs: 1, ..Summary::default() };
    for injection in &injections {
        *summary.injected.entry((injection.fault.target, injection.phase)).or_default() += 1;
    }
    Ok(summary)
}

/// Waits until the job ends, as long as it makes steps.
fn await_end(testbed: &Testbed, monitor: &mut Monitor) {
    let limit = testbed.engine.limit();
    let has_ended = |monitor: &Monitor| monitor.succeeded() || !monitor.can_succeed();
    let mut before = None;
    while !has_ended(monitor) && before != Some(monitor.steps()) {
        let steps = monitor.steps();
        monitor.until(testbed, limit, |monitor| has_ended(monitor) || monitor.steps() > steps);
        before = Some(steps);
    }
    monitor.check(monitor.succeeded(), || {
        format!("the job has made no step for {} s after its last fault", limit.as_secs())
    });
}

/// Checks that the operator and controllers write nothing for a succeeded job.
fn check_idle(testbed: &Testbed, monitor: &mut Monitor) {
    let versions = || -> Result<Vec<Value>> {
        let children = [
            "apis/apps/v1:statefulsets",
            "api/v1:services",
            "api/v1:configmaps",
            "apis/policy/v1:poddisruptionbudgets",
        ];
        let lists = children
            .map(|kind| kind.split_once(':').unwrap_or_default())
            .map(|(group, kind)| testbed.api.get(&testbed.path(group, kind)));
        let mut versions = vec![testbed.job()?["metadata"]["resourceVersion"].clone()];
        for list in lists {
            versions.extend(
                list?["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|object| object["metadata"]["resourceVersion"].clone()),
            );
        }
        Ok(versions)
    };
    // The last pods terminate, and their owners update their status.
    let gone = wait_until("the pods to terminate", LIMIT, || {
        Ok(testbed.leftovers().is_empty()
            && testbed.pods("trainer")?.is_empty()
            && testbed.pods("inference")?.is_empty()
            && testbed.pods("coordinator")?.is_empty()
            && testbed.pods("verifier")?.is_empty())
    });
    monitor.check(gone.is_ok(), || {
        format!("processes of a succeeded job are still running: {:?}", testbed.leftovers())
    });
    std::thread::sleep(IDLE_TIME);
    let before = versions();
    std::thread::sleep(IDLE_TIME);
    let (before, after) =
        (before.map_err(|error| error.to_string()), versions().map_err(|error| error.to_string()));
    monitor.check(before == after, || {
        format!("objects of an idle job were written: versions {before:?} became {after:?}")
    });
}

/// Prints the state, the injected faults and the violations, with the command to repeat the run.
fn report_violations(testbed: &Testbed, seed: u64, injections: &[Injection], monitor: &Monitor) {
    eprintln!("{}", testbed.state());
    eprintln!(
        "── violations of the job with seed {seed}; to repeat it: make chaos CHAOS_SEED={seed} \
            CHAOS_MINUTES=0"
    );
    for injection in injections {
        eprintln!("  {injection}");
    }
    for violation in monitor.violations() {
        eprintln!("VIOLATION {violation}");
    }
}

fn remove(testbed: &Testbed, namespace: &str, monitor: &mut Monitor) -> Result<()> {
    let kubectl = testbed.cluster.kubectl().in_namespace(namespace);
    kubectl.run(&["delete", &format!("rljob/{JOB}"), "--wait"])?;
    let kinds =
        "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
    let left = || {
        kubectl.run(&["get", kinds, &format!("--selector=rljob.dev/job={JOB}"), "--output=name"])
    };
    let gone = wait_until("the job's objects to be deleted", LIMIT, || {
        Ok(left()?.trim().is_empty() && testbed.leftovers().is_empty())
    });
    monitor.check(gone.is_ok(), || {
        format!(
            "objects or processes remain of a deleted job: {:?} {:?}",
            left(),
            testbed.leftovers(),
        )
    });
    kubectl.run(&["delete", "namespace", namespace, "--wait=false"])?;
    fs::remove_dir_all(testbed.runs().join(namespace)).context("failed to remove a run directory")
}
