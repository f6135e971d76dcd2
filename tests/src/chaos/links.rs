//! Links that are cut: a pod is reached by nobody and reaches nobody, but itself. The bridge of the nodes enforces no NetworkPolicy, so iptables does it, in the
//! pod's own network namespace.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Pid;

use crate::process::run;

const RULES: [[&str; 3]; 2] = [["INPUT", "!", "-i"], ["OUTPUT", "!", "-o"]];

/// Cuts the pod of a process off for a while.
pub(super) fn cut(pid: Pid, time: Duration) -> Result<()> {
    // A pod that is replaced meanwhile takes its namespace with it; this one holds it until the rules are gone.
    let held = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    let change = |what: &str| -> Result<()> {
        for [chain, not, interface] in RULES {
            run(Command::new("nsenter").arg(format!("--net={path}")).args(["iptables", "--wait", what, chain, not, interface, "lo", "-j", "DROP"]))?;
        }
        Ok(())
    };
    change("-I")?;
    std::thread::sleep(time);
    change("-D")
}
