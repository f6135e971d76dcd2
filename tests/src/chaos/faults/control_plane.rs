//! Faults of the operator, the API server, its store and DNS.

use anyhow::{Context, Result};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::fault::Fault;
use super::processes::{cut_off, killed, stopped};
use crate::chaos::testbed::{OPERATOR, SYSTEM, Testbed, one, short};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("operator", "killed", |testbed, random| killed(testbed, OPERATOR, random))
        .disturbing(),
    Fault::new("operator", "stopped", |testbed, random| stopped(testbed, OPERATOR, random))
        .disturbing(),
    Fault::new("operator", "cut off", |testbed, random| cut_off(testbed, OPERATOR, random))
        .disturbing(),
    Fault::new("operator pod", "deleted", operator_deleted).disturbing(),
    Fault::new("API server", "stopped", |testbed, random| {
        frozen(testbed, "/kube-apiserver", random)
    })
    .disturbing(),
    Fault::new("API server", "without store", |testbed, random| frozen(testbed, "/etcd", random))
        .disturbing(),
    Fault::new("DNS", "stopped", |testbed, random| frozen(testbed, "/coredns", random)),
];

/// Stops a component of the cluster for a while.
pub(super) fn frozen(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Testbed::stopped(&[testbed.server(command)?], short(random))
}

fn operator_deleted(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let pods = testbed.api.get(&format!("/api/v1/namespaces/{SYSTEM}/pods"))?;
    let names = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    let pod = one(names, random).context("no operator pod exists")?;
    testbed
        .api
        .delete(
            &format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}"),
            &json!({"gracePeriodSeconds": random.random_range(0..5)}),
        )
        .map(drop)
}
