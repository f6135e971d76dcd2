//! Limits of a command: a session, resource limits, a filter of system calls and a clear
//! environment. They hold for all of its descendants and cannot be lifted. The filter holds for the
//! runner too: no process of its container can be taken over to reach the network. In a job with
//! agents, whose programs need the network, it holds for commands of rewards.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rljob_coordinator::reward::session::{AGENT_VARIABLES, environment};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit, setsid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Exit code of a command that cannot be started.
pub const NOT_STARTED: u8 = 125;
/// Largest file in bytes.
const FILE_SIZE: u64 = 1 << 30;
const OPEN_FILES: u64 = 1024;
/// Domains of the sockets that commands of rewards can create, without the network, and agents.
const LOCAL: &[i32] = &[libc::AF_UNIX];
const NETWORK: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// Bit of the system calls of the x32 interface.
const X32: i64 = 1 << 30;
/// "Operation not permitted".
const EPERM: u32 = 1;

/// Replaces this process by the command; returns only why it could not.
pub fn exec(parent: i32, command: &[String]) -> String {
    if let Err(error) = prepare(parent) {
        return format!("{error:#}");
    }
    let Some((program, words)) = command.split_first() else {
        return "no program is given".to_owned();
    };
    let agent =
        AGENT_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let variables = environment().chain(agent);
    Command::new(program).args(words).env_clear().envs(variables).exec().to_string()
}

fn prepare(parent: i32) -> anyhow::Result<()> {
    // It is kept across execve.
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to set the parent death signal")?;
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the session ended during the start");
    setsid().context("failed to start a session")?;
    for (resource, limit) in
        [(Resource::Core, 0), (Resource::Fsize, FILE_SIZE), (Resource::Nofile, OPEN_FILES)]
    {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, limit)
            .with_context(|| format!("failed to limit the resource {resource:?}"))?;
    }
    Ok(())
}

/// Filters the system calls of this thread and of all later threads and processes. Also forbids new
/// privileges.
pub fn filter_calls(network: bool) -> anyhow::Result<()> {
    let domains = if network { NETWORK } else { LOCAL };
    let program: BpfProgram = filter(domains)?.try_into()?;
    seccompiler::apply_filter(&program).context("failed to filter system calls")
}

/// Rejects sockets of other domains, and access to other processes and rings, which would
/// circumvent it.
fn filter(domains: &[i32]) -> anyhow::Result<SeccompFilter> {
    let differs = |domain: &i32| {
        let domain = u64::from(domain.unsigned_abs());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, domain)
    };
    let other_domain = domains.iter().map(differs).collect::<Result<_, _>>()?;
    let socket = vec![SeccompRule::new(other_domain)?];
    let calls = [
        (libc::SYS_socket, socket),
        (libc::SYS_io_uring_setup, Vec::new()),
        (libc::SYS_ptrace, Vec::new()),
        (libc::SYS_process_vm_readv, Vec::new()),
        (libc::SYS_process_vm_writev, Vec::new()),
        (libc::SYS_pidfd_getfd, Vec::new()),
    ];
    let mut rules = BTreeMap::new();
    for (call, rule) in calls {
        if cfg!(target_arch = "x86_64") {
            rules.insert(call | X32, rule.clone());
        }
        rules.insert(call, rule);
    }
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let (allowed, rejected) = (SeccompAction::Allow, SeccompAction::Errno(EPERM));
    Ok(SeccompFilter::new(rules, allowed, rejected, architecture)?)
}
