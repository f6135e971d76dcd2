//! `rljob`: runs jobs on this machine, shows runs, validates and renders job files.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rljob_operator::terminal::printable;
use rljob_operator::{cli, local};

/// Reinforcement-learning post-training of language models as one Kubernetes object.
#[derive(Parser)]
#[command(name = "rljob", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the jobs of a file on this machine.
    Run(local::RunArgs),
    /// Show the state of runs, on this machine or in a cluster.
    Status(cli::StatusArgs),
    /// Print the logs of a run's processes.
    Logs(cli::LogsArgs),
    /// Write reports of runs.
    Report(cli::ReportArgs),
    /// Check job files and report all problems with their lines.
    Validate(cli::ValidateArgs),
    /// Print the objects that the operator would create for a job.
    Render(cli::RenderArgs),
    /// Print the CustomResourceDefinition.
    Crd,
    /// Run a program and kill it with all descendants when standard input closes.
    #[command(hide = true)]
    WithParent(cli::WithParentArgs),
}

/// Local runs need the main thread: their processes exit with the thread that started them.
#[tokio::main]
async fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => local::run(arguments).await,
        Command::Status(arguments) => cli::status(&arguments).await.and_then(|text| print(&text)),
        Command::Logs(arguments) => {
            cli::logs(&arguments, &mut std::io::stdout().lock()).map(|()| ExitCode::SUCCESS)
        }
        Command::Report(arguments) => cli::report(&arguments).and_then(|text| print(&text)),
        Command::Validate(arguments) => cli::validate(&arguments).and_then(|text| print(&text)),
        Command::Render(arguments) => cli::render(&arguments).and_then(|text| print(&text)),
        Command::Crd => cli::crd().and_then(|text| print(&text)),
        Command::WithParent(arguments) => cli::with_parent(&arguments).await,
    };
    result.unwrap_or_else(|error| {
        for line in rljob_protocol::error_line(error.as_ref()).lines() {
            eprintln!("error: {}", printable(line));
        }
        ExitCode::FAILURE
    })
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    match writeln!(std::io::stdout().lock(), "{}", printable(text.trim_end())) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        result => result?,
    }
    Ok(ExitCode::SUCCESS)
}
