//! Network partitions: a pod that is reached by nobody and reaches nobody, or that one address does
//! not reach. The bridge of the nodes enforces no NetworkPolicy, so iptables does it, in the pod's
//! own network namespace. Healed with the value.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;

use anyhow::Result;
use rustix::process::Pid;

use crate::process::run;

/// A partition, as long as it lives.
#[derive(Debug)]
pub struct Partition {
    /// A pod that is replaced takes its namespace with it, but for who holds it.
    network: File,
    /// Chain and match of each rule.
    rules: [Vec<String>; 2],
}

impl Partition {
    /// Cuts the pod of a process off from everybody but itself.
    pub fn of(pid: Pid) -> Result<Self> {
        Self::start(pid, [&["INPUT", "!", "-i", "lo"], &["OUTPUT", "!", "-o", "lo"]])
    }

    /// Cuts the pod of a process off from an address.
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
            eprintln!("a network partition was not healed: {error:#}");
        }
    }
}
