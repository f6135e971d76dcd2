//! `rljob`: run a job on this machine, and check or render job files, without a cluster.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rljob_operator::{cli, local};

/// Reinforcement-learning post-training of language models as one object.
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
    /// Check job files; every problem is reported with its line.
    Validate(cli::ValidateArgs),
    /// Print the objects that the operator would make of a job.
    Render(cli::RenderArgs),
    /// Print the CustomResourceDefinition.
    Crd,
}

/// The main thread awaits `run`: a local run's processes end with the thread that started them.
#[tokio::main]
async fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => local::run(arguments).await,
        Command::Validate(arguments) => cli::validate(&arguments).and_then(|text| print(&text)),
        Command::Render(arguments) => cli::render(&arguments).and_then(|text| print(&text)),
        Command::Crd => cli::crd().and_then(|text| print(&text)),
    };
    result.unwrap_or_else(|error| {
        for line in format!("{error:#}").lines() {
            eprintln!("error: {line}");
        }
        ExitCode::FAILURE
    })
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    writeln!(std::io::stdout().lock(), "{}", text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
