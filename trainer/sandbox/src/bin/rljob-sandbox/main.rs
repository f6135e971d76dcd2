//! `rljob-sandbox`: runs programs and functions of rewards, and tools, under limits that they
//! cannot lift.
//!
//! ```text
//!  judge ── one process per program ──▶ enter ─────────────▶ confine ──────────────▶ python3
//!   │ compares outputs                   user, namespaces,    limits, Landlock,       driver.py:
//!   └ kills and reaps everything         scratch in memory    seccomp, execve         test by test
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod confine;
mod driver;
mod enter;
mod function;
mod judge;
mod memory;
mod node;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rljob_sandbox::message::Settings;
use rljob_sandbox::plan::{FunctionLimits, Plan};
use rljob_sandbox::tool::ToolSettings;
use serde::de::DeserializeOwned;

use crate::node::{NOT_STARTED, Unsupported};

/// Runs programs in a sandbox.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Folder of the files of programs, which the caller removes. Default: that of the system.
    #[arg(long, value_name = "PATH")]
    scratch: Option<PathBuf>,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs programs on tests: a request per line of standard input.
    Judge {
        #[arg(long, value_name = "JSON", value_parser = json::<Settings>)]
        settings: Settings,
        /// Creates no namespaces, even where the node allows them.
        #[arg(long)]
        no_namespaces: bool,
    },
    /// Calls a function for each line of standard input.
    Function {
        #[arg(long, value_name = "JSON", value_parser = json::<FunctionLimits>)]
        limits: FunctionLimits,
        /// File of Python code.
        path: PathBuf,
        /// Name of the function.
        name: String,
    },
    /// Runs a tool: a call per line of standard input.
    Tool {
        #[arg(long, value_name = "JSON", value_parser = json::<ToolSettings>)]
        settings: ToolSettings,
        /// Creates no namespaces, even where the node allows them.
        #[arg(long)]
        no_namespaces: bool,
    },
    /// Enters namespaces, if the plan has them, and runs the command confined.
    Enter {
        #[arg(long, value_name = "JSON", value_parser = json::<Plan>)]
        plan: Plan,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Limits this process and replaces it by the command.
    Confine {
        #[arg(long, value_name = "JSON", value_parser = json::<Plan>)]
        plan: Plan,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text)
}

fn main() -> ExitCode {
    let Arguments { scratch, task } = Arguments::parse();
    if let Some(scratch) = scratch {
        // It fails only if it is set twice.
        let _ = tempfile::env::override_temp_dir(&scratch);
    }
    let result = match task {
        Task::Judge { settings, no_namespaces } => {
            judge::run(&settings, !no_namespaces).map(|()| ExitCode::SUCCESS)
        }
        Task::Function { limits, path, name } => function::run(&limits, &path, &name),
        Task::Tool { settings, no_namespaces } => {
            tool::run(&settings, !no_namespaces).map(|()| ExitCode::SUCCESS)
        }
        Task::Enter { plan, command } => {
            Ok(enter::enter(&plan, &command).unwrap_or_else(|error| not_started(&error)))
        }
        Task::Confine { plan, command } => Ok(not_started(&confine::exec(&plan, &command))),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        if error.is::<Unsupported>() { NOT_STARTED.into() } else { ExitCode::FAILURE }
    })
}

/// Tells a sandbox that does not start from a program that fails.
fn not_started(error: &anyhow::Error) -> ExitCode {
    eprintln!("{error:#}");
    NOT_STARTED.into()
}
