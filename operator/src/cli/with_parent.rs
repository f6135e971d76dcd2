//! Becomes another program that ends with the process that started this one: how `rljob run` starts programs that are not rljob's.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Becomes a program that is sent SIGTERM when its parent ends.
#[derive(clap::Args, Debug)]
pub struct WithParentArgs {
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Does not return where it succeeds.
///
/// # Errors
/// The program cannot be started.
pub fn exec_with_parent(arguments: &WithParentArgs) -> anyhow::Result<Infallible> {
    let parent = getppid();
    // The order outlives exec.
    set_parent_process_death_signal(Some(Signal::TERM)).context("failed to ask for a signal at the parent's end")?;
    anyhow::ensure!(getppid() == parent && parent.is_some(), "the parent ended during start");
    let (program, words) = arguments.command.split_first().context("no program is named")?;
    Err(Command::new(program).args(words).exec()).with_context(|| format!("failed to start {program}"))
}
