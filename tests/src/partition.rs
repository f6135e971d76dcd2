//! Network partitions of a pod, from every address or from one. The nodes' bridge plugin enforces
//! no NetworkPolicy, so firewall rules in the pod's network namespace drop the packets. Dropping
//! the value heals the partition.

use std::net::IpAddr;

use anyhow::Result;
use rustix::process::Pid;

use crate::firewall::Firewall;

/// An active partition.
#[derive(Debug)]
pub struct Partition(#[expect(dead_code, reason = "removes the rules on drop")] Firewall);

impl Partition {
    /// Drops all packets of the process's pod except loopback.
    pub fn of(pid: Pid) -> Result<Self> {
        let rules: [(_, &[&str]); 2] =
            [("INPUT", &["!", "-i", "lo"]), ("OUTPUT", &["!", "-o", "lo"])];
        Firewall::drop_packets(pid, &rules).map(Self)
    }

    /// Drops all packets between the process's pod and `address`.
    pub fn between(pid: Pid, address: IpAddr) -> Result<Self> {
        let address = address.to_string();
        let rules: [(_, &[&str]); 2] =
            [("INPUT", &["-s", &address]), ("OUTPUT", &["-d", &address])];
        Firewall::drop_packets(pid, &rules).map(Self)
    }
}
