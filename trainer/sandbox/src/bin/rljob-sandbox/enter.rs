//! Namespaces of a program: its own users, processes, mounts, network, IPC and host name, and a
//! scratch folder in memory. Everything in them ends with its first process.

use std::ffi::CString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use rljob_sandbox::plan::Plan;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;

use crate::confine;

/// Path of this program. Unlike its name, it can be executed by a user who cannot read the folder.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Runs a command confined. Without namespaces, returns only why it could not.
pub fn enter(plan: &Plan, command: &[String]) -> anyhow::Result<ExitCode> {
    if !plan.namespaces {
        return Err(confine::exec(plan, command));
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to set the parent death signal")?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    create_namespaces().context("failed to create namespaces")?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .with_context(|| format!("failed to write {file} of the namespace of users"))?;
    }
    let options = CString::new(plan.mount_options.as_str())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", &plan.scratch, "tmpfs", flags, options.as_c_str())
        .with_context(|| format!("failed to mount {}", plan.scratch.display()))?;
    let plan = serde_json::to_string(plan)?;
    // The next process is the first of its namespace. Its execution drops all capabilities.
    let status = Command::new(THIS_PROGRAM)
        .args(["confine", "--plan", &plan, "--"])
        .args(command)
        .status()
        .context("failed to start the first process of the namespaces")?;
    let code = status.code().or_else(|| status.signal()?.checked_add(128)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1).into())
}

/// Namespaces of this process, except that of processes, which the next one enters.
#[expect(deprecated, reason = "only UnshareFlags::FILES, which is not used, makes it unsafe")]
fn create_namespaces() -> rustix::io::Result<()> {
    rustix::thread::unshare(
        UnshareFlags::NEWUSER
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWPID
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS,
    )
}
