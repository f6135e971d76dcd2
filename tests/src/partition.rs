//! Network partitions of a pod, from every address or from one. The nodes' bridge plugin enforces
//! no NetworkPolicy, so iptables rules in the pod's network namespace drop the packets. Dropping
//! the value heals the partition.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;

use anyhow::Result;
use rustix::process::Pid;

use crate::process::run;

/// An active partition.
#[derive(Debug)]
pub struct Partition {
    /// Keeps the network namespace alive when the pod is replaced.
    network: File,
    /// Chain and match of each rule.
    rules: [Vec<String>; 2],
}

impl Partition {
    /// Drops all packets of the process's pod except loopback.
    pub fn of(pid: Pid) -> Result<Self> {
        Self::start(pid, [&["INPUT", "!", "-i", "lo"], &["OUTPUT", "!", "-o", "lo"]])
    }

    /// Drops all packets between the process's pod and `address`.
    pub fn between(pid: Pid, address: IpAddr) -> Result<Self> {
        let address = address.to_string();
        Self::start(pid, [&["INPUT", "-s", &address], &["OUTPUT", "-d", &address]])
    }

    fn start(pid: Pid, rules: [&[&str]; 2]) -> Result<Self> {
        let network = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))?;
        let partition = Self {
            network,
            rules: rules.map(|rule| rule.iter().map(ToString::to_string).collect()),
        };
        partition.change("-I")?;
        Ok(partition)
    }

    fn change(&self, what: &str) -> Result<()> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.network.as_raw_fd());
        for rule in &self.rules {
            run(Command::new("nsenter")
                .arg(format!("--net={path}"))
                .args(["iptables", "--wait", what])
                .args(rule)
                .args(["-j", "DROP"]))?;
        }
        Ok(())
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        if let Err(error) = self.change("-D") {
            eprintln!("failed to heal a network partition: {error:#}");
        }
    }
}
