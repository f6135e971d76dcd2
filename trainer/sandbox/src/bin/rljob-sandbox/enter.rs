//! Namespaces of a program: its own users, processes, mounts, network, IPC and host name, and a
//! scratch folder in memory. Everything in them ends with its first process.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rljob_sandbox::plan::Plan;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

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
    let flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(flags).context("failed to create namespaces")?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .with_context(|| format!("failed to write {file} of the namespace of users"))?;
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let options = Some(plan.mount_options.as_str());
    mount(Some("tmpfs"), &plan.scratch, Some("tmpfs"), flags, options)
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
