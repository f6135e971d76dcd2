//! Pods with devices of a device plugin, on a node with stand-ins of GPUs. Learners compute on CPUs
//! where `nvidia.com/gpu` is not in their limits, so that the job that runs has devices of another
//! name; `bench/gpu/kubernetes.py` runs the same on GPUs.

use std::collections::BTreeSet;
use std::fs;

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, DevicePlugin, Namespace, rootfs};
use serde_json::{Value, json};

use super::{LIMIT, Run, full_reference, install_operator, operator_image};
use crate::control_plane::merge;

const JOB: &str = include_str!("gpus.yaml");

fn cluster_of_one_node() -> Cluster {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
    cluster.import(&image).unwrap();
    install_operator(&cluster);
    cluster
}

/// Devices of GPUs in the container of the newest process of a program, if it runs.
fn devices(cluster: &Cluster, program: &str) -> Option<BTreeSet<String>> {
    let processes = cluster.pod_processes("");
    let newest = processes.iter().rfind(|process| process.command_line.contains(program))?;
    let folder = format!("/proc/{}/root/dev", newest.pid.as_raw_nonzero());
    let names = fs::read_dir(folder).ok()?.flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Some(names.filter(|name| name.starts_with("nvidia")).collect())
}

/// `NVIDIA_VISIBLE_DEVICES` of a program.
fn visible(cluster: &Cluster, program: &str) -> String {
    let processes = cluster.pod_processes("");
    let newest = processes.iter().rfind(|process| process.command_line.contains(program)).unwrap();
    let variables = fs::read(format!("/proc/{}/environ", newest.pid.as_raw_nonzero())).unwrap();
    let variables = String::from_utf8_lossy(&variables).into_owned();
    let value = |line: &str| line.strip_prefix("NVIDIA_VISIBLE_DEVICES=").map(ToOwned::to_owned);
    variables.split('\0').find_map(value).unwrap()
}

#[test]
fn pods_see_their_own_devices_and_a_job_with_too_few_waits() {
    let cluster = cluster_of_one_node();
    let _devices = DevicePlugin::start(&cluster, "example.com/gpu", (2, 1)).unwrap();
    let namespace = Namespace::create(&cluster, "gpus").unwrap();
    let run = Run::start(&cluster, &namespace, JOB, "devices");
    run.wait_for_steps(1);
    let of = |program: &str| devices(&cluster, program).unwrap();
    let (engine, learner) = (of("rljob-engine --model-path"), of("rljob-learner "));
    assert_eq!((engine.len(), learner.len()), (1, 1), "{engine:?} and {learner:?}");
    let both: BTreeSet<_> = engine.union(&learner).map(String::as_str).collect();
    assert_eq!(both, BTreeSet::from(["nvidia0", "nvidia1"]));
    assert_eq!(of("rljob-coordinator --config"), BTreeSet::new());
    for (program, devices) in [("rljob-engine --model-path", engine), ("rljob-learner ", learner)] {
        let number = visible(&cluster, program);
        assert_eq!(devices, BTreeSet::from([format!("nvidia{number}")]), "{program}");
    }
    run.wait_for_condition("Succeeded");
    assert_eq!(run.status()["restarts"], 0);
    too_few_are_reported(&cluster, &namespace);
}

/// A learner group of two GPUs on a node with one.
fn too_few_are_reported(cluster: &Cluster, namespace: &Namespace) {
    let _devices = DevicePlugin::start(cluster, "nvidia.com/gpu", (1, 1)).unwrap();
    let mut job: Value = serde_yaml::from_str(JOB).unwrap();
    let limits = json!({"limits": {"example.com/gpu": null, "nvidia.com/gpu": 2}});
    merge(&mut job["spec"]["trainer"], &json!({"resources": limits}));
    merge(&mut job["metadata"], &json!({"name": "waits"}));
    let run = Run::start(cluster, namespace, &job.to_string(), "waits");
    let message = || {
        let conditions = run.status()["conditions"].take();
        let mut conditions = conditions.as_array().into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        ready.map(|ready| ready["message"].to_string()).unwrap_or_default()
    };
    let expected = ["waits-trainer-0", "Insufficient nvidia.com/gpu"];
    let is_shown = || Ok(expected.iter().all(|part| message().contains(part)));
    wait_until("the missing GPU in the status", LIMIT, is_shown)
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}", run.status()));
}
