//! Faults of agents in verifier pods: of their programs, of the sessions that run them, and of the
//! way to the proxy. Conversations stay the same.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand_chacha::ChaCha8Rng;
use rustix::process::Pid;

use super::fault::Fault;
use super::processes::{killed, stopped};
use crate::chaos::testbed::{Testbed, short};
use crate::netns::NetworkNamespace;
use crate::partition::Partition;
use crate::process::wait_until;

/// Substrings of command lines of the processes of an agent.
const PROGRAM: &str = "/data/agent.py";
const SESSION: &str = "/rljob-reward-runner session --network";
/// Time limit of the start of an agent: they run for a part of each step.
const LIMIT: Duration = Duration::from_secs(10);
/// Connections of a flood.
const CONNECTIONS: usize = 256;
/// What the connections of a flood send: a wrong key, no HTTP, and a request that never ends.
const FLOOD: [&str; 3] = [
    "POST /v1/rljob/reward HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer rljob-0\r\n\
     Content-Length: 13\r\n\r\n{\"reward\": 99}",
    "\0\u{1}\u{2}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "POST /exit HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{",
];

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("agent", "killed", |testbed, random| {
        await_agents(testbed)?;
        killed(testbed, PROGRAM, random)
    }),
    Fault::new("agent", "stopped", |testbed, random| {
        await_agents(testbed)?;
        stopped(testbed, PROGRAM, random)
    }),
    Fault::new("agent", "session killed", |testbed, random| {
        await_agents(testbed)?;
        killed(testbed, SESSION, random)
    }),
    Fault::new("agent", "session stopped", |testbed, random| {
        await_agents(testbed)?;
        stopped(testbed, SESSION, random)
    }),
    Fault::new("proxy", "cut off", cut_off),
    Fault::new("proxy", "flooded", flooded),
];

fn await_agents(testbed: &Testbed) -> Result<()> {
    wait_until("an agent", LIMIT, || Ok(!testbed.processes(PROGRAM).is_empty()))
}

/// Partitions a verifier pod from the coordinator only.
fn cut_off(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    await_agents(testbed)?;
    let pid = testbed.random_process(SESSION, random)?;
    let addresses = testbed.addresses("coordinator")?;
    let partitions = addresses.into_iter().map(|address| Partition::between(pid, address));
    let partitions = partitions.collect::<Result<Vec<_>>>()?;
    ensure!(!partitions.is_empty(), "the coordinator has no address");
    std::thread::sleep(short(random));
    Ok(())
}

/// Connects to the ports of the agents of a pod without their keys.
fn flooded(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    await_agents(testbed)?;
    let pid = testbed.random_process(SESSION, random)?;
    let ports = loopback_ports(pid)?;
    ensure!(!ports.is_empty(), "no agent of the pod has a port");
    let network = NetworkNamespace::of_process(pid.as_raw_nonzero().get().unsigned_abs())?;
    let mut open = Vec::new();
    for (port, text) in ports.iter().cycle().zip(FLOOD.iter().cycle()).take(CONNECTIONS) {
        // The session may have ended.
        let Ok(mut stream) = network.connect((Ipv4Addr::LOCALHOST, *port).into()) else { continue };
        let _ = stream.write_all(text.as_bytes());
        open.push(stream);
    }
    ensure!(!open.is_empty(), "the agents of the pod have ended");
    std::thread::sleep(short(random));
    Ok(())
}

/// Ports of 127.0.0.1 on which processes listen in the network namespace of a process.
fn loopback_ports(pid: Pid) -> Result<Vec<u16>> {
    let sockets = fs::read_to_string(format!("/proc/{}/net/tcp", pid.as_raw_nonzero()))?;
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        let port = local.strip_prefix("0100007F:").filter(|_| state == "0A")?;
        u16::from_str_radix(port, 16).ok()
    };
    Ok(sockets.lines().filter_map(port).collect())
}
