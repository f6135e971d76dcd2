//! iptables rules in the network namespace of a pod, removed on drop.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;

use anyhow::Result;
use rustix::process::Pid;

use crate::process::run;

/// Rules in the network namespace of a pod.
#[derive(Debug)]
pub struct Firewall {
    /// Keeps the network namespace alive when the pod is replaced.
    network: File,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    table: &'static str,
    chain: &'static str,
    /// Match and target.
    arguments: Vec<String>,
}

impl Firewall {
    /// Rules of the table `filter` that drop packets, each with its chain.
    pub(crate) fn drop_packets(pid: Pid, rules: &[(&'static str, &[&str])]) -> Result<Self> {
        let rule = |(chain, matching): &(&'static str, &[&str])| Rule {
            table: "filter",
            chain,
            arguments: matching.iter().chain(&["-j", "DROP"]).map(ToString::to_string).collect(),
        };
        Self::start(pid, rules.iter().map(rule).collect())
    }

    /// Redirects new connections from `clients` to a port of the pod to another one.
    pub fn redirect(pid: Pid, clients: &[IpAddr], port: u16, to: u16) -> Result<Self> {
        let rule = |client: &IpAddr| {
            let arguments =
                format!("-p tcp -s {client} --dport {port} -j REDIRECT --to-ports {to}");
            let arguments = arguments.split(' ').map(str::to_owned).collect();
            Rule { table: "nat", chain: "PREROUTING", arguments }
        };
        Self::start(pid, clients.iter().map(rule).collect())
    }

    fn start(pid: Pid, rules: Vec<Rule>) -> Result<Self> {
        let network = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))?;
        let mut firewall = Self { network, rules: Vec::new() };
        for rule in rules {
            firewall.change("-I", &rule)?;
            firewall.rules.push(rule);
        }
        Ok(firewall)
    }

    fn change(&self, what: &str, rule: &Rule) -> Result<()> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.network.as_raw_fd());
        run(Command::new("nsenter")
            .arg(format!("--net={path}"))
            .args(["iptables", "--wait", "--table", rule.table, what, rule.chain])
            .args(&rule.arguments))
        .map(drop)
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        for rule in &self.rules {
            if let Err(error) = self.change("-D", rule) {
                eprintln!("failed to remove a firewall rule: {error:#}");
            }
        }
    }
}
