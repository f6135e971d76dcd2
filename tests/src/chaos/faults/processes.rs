//! Faults of the job's processes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};

use super::fault::Fault;
use crate::chaos::testbed::{COORDINATOR, LEARNER, SUPERVISOR, Testbed, short};
use crate::partition::Partition;
use crate::process::wait_until;
use crate::procfs::resume;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("engine", "killed", |testbed, random| {
        killed(testbed, testbed.engine.command(), random)
    }),
    Fault::new("engine", "stopped", |testbed, random| {
        stopped(testbed, testbed.engine.command(), random)
    }),
    Fault::new("engine", "cut off", |testbed, random| {
        cut_off(testbed, testbed.engine.command(), random)
    }),
    Fault::new("engine", "hung", |testbed, random| hung(testbed, testbed.engine.command(), random)),
    Fault::new("coordinator", "killed", |testbed, random| killed(testbed, COORDINATOR, random)),
    Fault::new("coordinator", "stopped", |testbed, random| stopped(testbed, COORDINATOR, random)),
    Fault::new("coordinator", "cut off", |testbed, random| cut_off(testbed, COORDINATOR, random)),
    Fault::new("coordinator", "hung", |testbed, random| hung(testbed, COORDINATOR, random)),
    Fault::new("learner", "killed", |testbed, random| killed(testbed, LEARNER, random)).counted(),
    Fault::new("learner", "stopped", |testbed, random| stopped(testbed, LEARNER, random)),
    Fault::new("learner", "hung", |testbed, random| hung(testbed, LEARNER, random)).counted(),
    Fault::new("trainer pod", "killed", |testbed, random| killed(testbed, SUPERVISOR, random)),
    Fault::new("trainer pod", "stopped", |testbed, random| stopped(testbed, SUPERVISOR, random)),
    Fault::new("trainer pod", "cut off", |testbed, random| cut_off(testbed, SUPERVISOR, random)),
    Fault::new("trainer pod", "cut off from its peers", cut_off_from_peers),
    Fault::new("trainer pod", "hung", |testbed, random| hung(testbed, SUPERVISOR, random)),
];

pub(super) fn killed(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    kill_process(testbed.random_process(command, random)?, Signal::KILL)
        .context("the process has exited")
}

pub(super) fn stopped(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Testbed::stopped(&[testbed.random_process(command, random)?], short(random))
}

/// Stops a process until it is replaced, for at most a minute.
fn hung(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = testbed.random_process(command, random)?;
    kill_process(pid, Signal::STOP).context("the process has exited")?;
    // Resumes a process that was not replaced.
    let _ = wait_until("a successor", Duration::from_secs(60), || {
        Ok(!testbed.processes(command).contains(&pid))
    });
    resume(pid);
    Ok(())
}

/// Partitions the pod of a process from the network for a while.
pub(super) fn cut_off(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    let pid: Pid = testbed.random_process(command, random)?;
    let _partition = Partition::of(pid)?;
    std::thread::sleep(short(random));
    Ok(())
}

/// Partitions a trainer pod from the other trainer pods only.
fn cut_off_from_peers(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = testbed.random_process(SUPERVISOR, random)?;
    let partitions = testbed
        .addresses("trainer")?
        .into_iter()
        .map(|address| Partition::between(pid, address))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!partitions.is_empty(), "no trainer pod has an address");
    std::thread::sleep(short(random));
    Ok(())
}
