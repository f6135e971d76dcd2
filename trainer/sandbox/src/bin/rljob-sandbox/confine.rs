//! Limits of this process, which it and its descendants cannot lift: resources, files, network,
//! signals and system calls. Then the program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rljob_sandbox::filter;
use rljob_sandbox::plan::Plan;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit, setsid,
};

/// Newest rules that are requested. An older kernel enforces those that it knows.
const RULES: ABI = ABI::V6;

/// Replaces this process by the command; returns only why it could not.
pub fn exec(plan: &Plan, command: &[String]) -> anyhow::Error {
    if let Err(error) = confine(plan) {
        return error;
    }
    let Some((program, arguments)) = command.split_first() else {
        return anyhow::anyhow!("no program is given");
    };
    let error = Command::new(program).args(arguments).env_clear().envs(plan.environment()).exec();
    anyhow::Error::new(error).context(format!("failed to execute {program}"))
}

fn confine(plan: &Plan) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to set the parent death signal")?;
    setsid().context("failed to start a session")?;
    let folder = plan.folder.as_ref().unwrap_or(&plan.scratch);
    std::env::set_current_dir(folder)
        .with_context(|| format!("failed to enter the folder {}", folder.display()))?;
    limit_resources(plan)?;
    limit_access(plan).context("failed to limit access to files (Landlock)")?;
    let as_test = plan.filters_as_tests.then(|| filter::test(!plan.namespaces)).transpose()?;
    for program in filter::sandbox()?.into_iter().chain(as_test) {
        seccompiler::apply_filter(&program).context("failed to filter system calls")?;
    }
    Ok(())
}

fn limit_resources(plan: &Plan) -> anyhow::Result<()> {
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::As, Some(plan.address_space)),
        (Resource::Fsize, Some(plan.file_size)),
        (Resource::Nofile, Some(plan.open_files)),
        (Resource::Memlock, Some(0)),
        (Resource::Msgqueue, Some(0)),
        (Resource::Nproc, plan.processes),
    ];
    for (resource, limit) in limits {
        // A lower limit of this process holds.
        let maximum = getrlimit(resource).maximum;
        let Some(limit) = limit.map(|limit| maximum.map_or(limit, |maximum| limit.min(maximum)))
        else {
            continue;
        };
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, limit)
            .with_context(|| format!("failed to limit the resource {resource:?}"))?;
    }
    Ok(())
}

/// Allows to read the plan's files, to write to its scratch folder, and nothing else: no other
/// file, no TCP, no signal to a process outside.
fn limit_access(plan: &Plan) -> anyhow::Result<()> {
    let (read, all) = (AccessFs::from_read(RULES), AccessFs::from_all(RULES));
    let null = AccessFs::ReadFile | AccessFs::WriteFile;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?
        .add_rules(path_beneath_rules(&plan.readable, read))?
        .add_rules(path_beneath_rules([&plan.scratch], all))?
        .add_rules(path_beneath_rules(["/dev/null"], null))?
        .restrict_self()?;
    anyhow::ensure!(status.ruleset != RulesetStatus::NotEnforced, "the kernel does not support it");
    Ok(())
}
