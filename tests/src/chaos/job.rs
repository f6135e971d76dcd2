//! The life of one job: made, struck by the faults of its schedule, left alone until it has
//! succeeded, compared, and removed.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rljob_crds::names::EXPORT_DIR;
use serde_json::Value;

use super::Tally;
use super::ends::Ends;
use super::scene::{JOB, Scene};
use super::schedule::{Schedule, Struck};
use super::watch::Watch;
use crate::process::wait_until;

/// Steps of every job (job.yaml).
pub(super) const STEPS: usize = 60;
/// Time that an undisturbed job may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Time in which nothing may be written once a job is through.
const REST: Duration = Duration::from_secs(3);
const YAML: &str = include_str!("job.yaml");

/// The documents of job.yaml: the job that makes the model, and the job under chaos.
fn manifests(scene: &Scene) -> Result<(String, String)> {
    let text = YAML
        .replace("DATA", &scene.data.display().to_string())
        .replace("RUNS", &scene.runs().display().to_string());
    text.split_once("---\n")
        .map(|(model, job)| (model.to_owned(), scene.engine.serve(job.to_owned())))
        .context("job.yaml has two documents")
}

/// Makes the model.
pub(super) fn model(scene: &Scene) -> Result<()> {
    succeeds(scene, "model", &manifests(scene)?.0)?;
    let export = scene.runs().join("model/imitate").join(EXPORT_DIR);
    let imitated = scene.data.join("imitated");
    fs::create_dir(&imitated)?;
    for file in fs::read_dir(export)? {
        let file = file?;
        fs::copy(file.path(), imitated.join(file.file_name()))?;
    }
    Ok(())
}

/// A run that nothing disturbs.
pub(super) fn undisturbed(scene: &Scene) -> Result<Ends> {
    succeeds(scene, "undisturbed", &manifests(scene)?.1)?;
    Ends::of(&scene.run_directory())
}

/// Lets a job run to its end in a namespace, and removes it.
fn succeeds(scene: &Scene, namespace: &str, manifest: &str) -> Result<()> {
    scene.turn_to(namespace)?;
    let kubectl = scene.cluster.kubectl().in_namespace(namespace);
    kubectl.apply(manifest)?;
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    kubectl
        .run(&["wait", "--for=condition=Succeeded", "rljobs", "--all", &limit])
        .with_context(|| scene.state())?;
    kubectl.run(&["delete", "rljobs", "--all", "--cascade=foreground"]).map(drop)
}

/// A job under the schedule of a seed.
pub(super) fn disturbed(scene: &Scene, seed: u64, undisturbed: Option<&Ends>) -> Result<Tally> {
    let namespace = format!("chaos-{seed}");
    scene.turn_to(&namespace)?;
    let (_, manifest) = manifests(scene)?;
    // Both ways of weight sync, and a journal that is kept whole or pruned.
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
    scene.cluster.kubectl().in_namespace(&namespace).apply(&manifest)?;

    let mut watch = Watch::default();
    let struck = Schedule::new(seed, scene).play(scene, &mut watch);
    let limit = scene.engine.limit();
    watch.until(scene, limit, |watch| watch.succeeded() || !watch.goes_on());
    watch.check(watch.succeeded(), || {
        format!("the job has not succeeded {} s after its last fault", limit.as_secs())
    });
    watch.restarts_within(struck.iter().filter(|struck| struck.fault.counts).count());
    if watch.succeeded() {
        watch.take(
            Ends::of(&scene.run_directory()).map_or_else(
                |error| vec![format!("{error:#}")],
                |ends| ends.differences(undisturbed),
            ),
        );
        rests(scene, &mut watch);
    }
    let violations = watch.violations().len();
    if violations > 0 {
        tell(scene, seed, &struck, &watch);
    }
    remove(scene, &namespace, &mut watch)?;
    let mut tally = Tally { violations: watch.violations().len(), jobs: 1, ..Tally::default() };
    for struck in &struck {
        *tally.struck.entry((struck.fault.part, struck.phase)).or_default() += 1;
    }
    Ok(tally)
}

/// A job that is through is left alone.
fn rests(scene: &Scene, watch: &mut Watch) {
    let versions = || -> Result<Vec<Value>> {
        let children = [
            "apis/apps/v1:statefulsets",
            "api/v1:services",
            "api/v1:configmaps",
            "apis/policy/v1:poddisruptionbudgets",
        ];
        let lists = children
            .map(|kind| kind.split_once(':').unwrap_or_default())
            .map(|(group, kind)| scene.api.get(&scene.path(group, kind)));
        let mut versions = vec![scene.job()?["metadata"]["resourceVersion"].clone()];
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
    // The last pods go, and their owners count them.
    let gone = wait_until("the pods to go", LIMIT, || {
        Ok(scene.leftovers().is_empty()
            && scene.pods("trainer")?.is_empty()
            && scene.pods("inference")?.is_empty()
            && scene.pods("coordinator")?.is_empty())
    });
    watch.check(gone.is_ok(), || {
        format!("of a job that has succeeded, these processes are left: {:?}", scene.leftovers())
    });
    std::thread::sleep(REST);
    let before = versions();
    std::thread::sleep(REST);
    let (before, after) =
        (before.map_err(|error| error.to_string()), versions().map_err(|error| error.to_string()));
    watch.check(before == after, || {
        format!("objects of a job at rest were written: versions {before:?} became {after:?}")
    });
}

/// What a person needs to find out what went wrong, and to see it again.
fn tell(scene: &Scene, seed: u64, struck: &[Struck], watch: &Watch) {
    eprintln!("{}", scene.state());
    eprintln!(
        "── violations of the job with seed {seed}; again: make chaos CHAOS_SEED={seed} CHAOS_MINUTES=0"
    );
    for struck in struck {
        eprintln!("  {struck}");
    }
    for violation in watch.violations() {
        eprintln!("VIOLATION {violation}");
    }
}

fn remove(scene: &Scene, namespace: &str, watch: &mut Watch) -> Result<()> {
    let kubectl = scene.cluster.kubectl().in_namespace(namespace);
    kubectl.run(&["delete", &format!("rljob/{JOB}"), "--wait"])?;
    let kinds =
        "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
    let left = || {
        kubectl.run(&["get", kinds, &format!("--selector=rljob.dev/job={JOB}"), "--output=name"])
    };
    let gone = wait_until("the job's objects to go", LIMIT, || {
        Ok(left()?.trim().is_empty() && scene.leftovers().is_empty())
    });
    watch.check(gone.is_ok(), || {
        format!("a job that is deleted leaves {:?} {:?}", left(), scene.leftovers())
    });
    kubectl.run(&["delete", "namespace", namespace, "--wait=false"])?;
    fs::remove_dir_all(scene.runs().join(namespace)).context("cannot remove a run directory")
}
