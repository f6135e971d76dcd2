//! Coordinators that are silent, lie or flood. The status must not take over lies, the operator's
//! memory stays bounded, and it continues its other duties.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fault::Fault;
use crate::chaos::expectations::{Violation, condition, expect, is_stalled};
use crate::chaos::impostor::{Behavior, Impostor};
use crate::chaos::targets::processes_of_pod;
use crate::chaos::testbed::{COORDINATOR, OPERATOR, Testbed, between, one};
use crate::process::wait_until;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("coordinator", "silent", |testbed, random| {
        replaced(testbed, Behavior::Silent, random)
    })
    .checking(),
    Fault::new("coordinator", "lying", |testbed, random| {
        replaced(testbed, Behavior::Lying, random)
    })
    .checking(),
    Fault::new("coordinator", "flooding", |testbed, random| {
        replaced(testbed, Behavior::Flooding, random)
    })
    .checking(),
];

/// Reasons of `Ready` while a coordinator does not answer, or not as it must.
const REASONS: [&str; 2] = ["CoordinatorUnresponsive", "ProtocolUnsupported"];
/// Time limit of `CoordinatorUnresponsive`, which is due after 30 s.
const UNRESPONSIVE: Duration = Duration::from_secs(60);
/// Time limit of an honest status after the fault, and of a duty of the operator.
const LIMIT: Duration = Duration::from_secs(60);
/// Bound on the growth of an operator's memory in KiB: a few answers of 4 MiB.
const GROWTH: u64 = 64 << 10;

/// Replaces the coordinator for the operator only.
fn replaced(testbed: &Testbed, behavior: Behavior, random: &mut ChaCha8Rng) -> Result<()> {
    let coordinator = one(testbed.pod_objects("coordinator")?, random);
    let uid = coordinator.as_ref().and_then(|pod| pod["metadata"]["uid"].as_str());
    let uid = uid.context("no coordinator pod exists")?;
    let pid = processes_of_pod(uid, COORDINATOR).first().copied();
    let pid = pid.context("the coordinator does not run")?;

    let _stall = testbed.expect_stall();
    let before = testbed.memory(OPERATOR);
    let impostor = Impostor::start(testbed, pid, behavior)?;
    let result = observe(testbed, behavior, uid, random);
    let requests = impostor.requests();
    drop(impostor);
    let honest = expect(testbed, "its coordinator's answers", LIMIT, |job| {
        let ready = condition(job, "Ready");
        !is_stalled(job) && !REASONS.iter().any(|reason| ready["reason"] == *reason)
    });
    let result = result.and(honest).and(bounded(&before, &testbed.memory(OPERATOR)));
    match result {
        Ok(()) if requests == 0 => bail!("the operator sent no request"),
        result => result,
    }
}

/// Waits, and checks the operator meanwhile.
fn observe(
    testbed: &Testbed,
    behavior: Behavior,
    uid: &str,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    // While the coordinator's release counts as unsupported, no object is changed.
    if behavior != Behavior::Lying {
        restores_object(testbed)?;
    }
    if behavior == Behavior::Silent && random.random_bool(0.5) {
        let is_replaced = || {
            let pods = testbed.pod_objects("coordinator").unwrap_or_default();
            !pods.iter().any(|pod| pod["metadata"]["uid"] == uid)
        };
        return expect(testbed, REASONS[0], UNRESPONSIVE, |job| {
            // A new coordinator pod answers.
            condition(job, "Ready")["reason"] == REASONS[0] || is_replaced()
        });
    }
    std::thread::sleep(between(random, 1.0, 8.0));
    Ok(())
}

/// Deletes a child of the job, which the operator must restore.
fn restores_object(testbed: &Testbed) -> Result<()> {
    let path = testbed.path("apis/policy/v1", "poddisruptionbudgets");
    let uids = || -> Result<Vec<Value>> {
        let list = testbed.api.get(&path)?;
        let budgets = list["items"].as_array().into_iter().flatten();
        Ok(budgets.map(|budget| budget["metadata"].clone()).collect())
    };
    let Some(deleted) = uids()?.into_iter().next() else { return Ok(()) };
    let name = deleted["name"].as_str().unwrap_or_default();
    testbed.api.delete(&format!("{path}/{name}"), &json!({}))?;
    let restored = wait_until("the operator to restore a PodDisruptionBudget", LIMIT, || {
        let ended = ["True", "False"].iter().any(|status| {
            testbed.job().is_ok_and(|job| condition(&job, "Succeeded")["status"] == *status)
        });
        let is_new = |new: &Value| new["name"] == deleted["name"] && new["uid"] != deleted["uid"];
        Ok(ended || uids()?.iter().any(is_new))
    });
    restored.map_err(|error| Violation(format!("{error:#}")).into())
}

/// Checks the memory of the operators that run since before the fault.
fn bounded(before: &[(i32, u64)], after: &[(i32, u64)]) -> Result<()> {
    let grown = after
        .iter()
        .find(|(pid, now)| before.iter().any(|(known, then)| known == pid && *now > then + GROWTH));
    match grown {
        Some((pid, now)) => {
            Err(Violation(format!("operator {pid} grew to {now} KiB: {before:?}")).into())
        }
        None => Ok(()),
    }
}
