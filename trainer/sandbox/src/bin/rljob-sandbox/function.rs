//! A reward function of the user: one long-lived process in the sandbox.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Context;
use rljob_sandbox::children::end_children;
use rljob_sandbox::plan::{FunctionLimits, Plan};
use rustix::process::{getpid, set_child_subreaper};

use crate::memory::MemoryLimit;
use crate::node::{NOT_STARTED, PYTHON, entering, has_namespaces, program, scratch};

const FUNCTION: &str = include_str!("function.py");
/// Exit code of `function.py` if the file has no such function that can be called.
const UNUSABLE: i32 = 126;

/// Runs the function's process until it ends. It keeps the user, who may be the only one who
/// can read the folder of the function.
pub fn run(limits: &FunctionLimits, path: &Path, name: &str) -> anyhow::Result<ExitCode> {
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    let path = path.canonicalize().with_context(|| format!("failed to open {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let plan =
        |namespaces, scratch| Plan::for_function(limits, namespaces, scratch, folder.to_owned());
    let scratch = scratch(true)?;
    let plan = plan(has_namespaces(true, PYTHON, plan)?, scratch.path().to_owned());
    let memory = MemoryLimit::start(&plan, 0);
    let status = entering(&plan, true)?
        .arg(program("python3")?)
        // Unbuffered: what the function prints is not lost with its process.
        .args(["-u", "-c", FUNCTION])
        .arg(&path)
        .arg(name)
        .stdin(Stdio::inherit())
        .status()
        .context("failed to start a sandbox")?;
    if memory.was_exceeded() {
        // The last line is the cause that the coordinator reports.
        eprintln!("more than {} MiB of memory in all processes together", limits.memory_mib);
    }
    drop(memory);
    end_children();
    if status.code() == Some(UNUSABLE) {
        return Ok(NOT_STARTED.into());
    }
    // A sandbox that does not start once may start at the next try.
    let code = status.code().filter(|code| *code != i32::from(NOT_STARTED));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into())
}
