//! `rljob`: runs jobs on this machine, shows runs, validates and renders job files. Installed as
//! `kubectl-rljob`, it is a kubectl plugin.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use rljob_operator::cli::program::{self, Command};
use rljob_operator::local::{Outcome, RunArgs};
use rljob_operator::terminal::printable;
use rljob_operator::{cli, local};

/// Local runs need the main thread: their processes exit with the thread that started them.
#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(run(program::parse())).await.unwrap_or_else(|error| {
        for line in rljob_protocol::error_line(error.as_ref()).lines() {
            eprintln!("error: {}", printable(line));
        }
        ExitCode::FAILURE
    })
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(arguments) => run_jobs(&arguments).await,
        Command::Evaluate(arguments) => run_jobs(&arguments.into()).await,
        Command::WithParent(arguments) => cli::with_parent(&arguments).await,
        Command::Status(arguments) => {
            until_closed(cli::status(&arguments, &mut std::io::stdout()).await)
        }
        Command::Top(arguments) => until_closed(cli::top(&arguments, &mut std::io::stdout()).await),
        Command::Dashboard(arguments) => {
            until_closed(cli::dashboard(&arguments, &mut std::io::stdout()).await)
        }
        Command::Logs(arguments) => {
            until_closed(cli::logs(&arguments, &mut std::io::stdout()).await)
        }
        Command::Events(arguments) => print(&cli::events(&arguments).await?),
        Command::Checkpoints(arguments) => print(&cli::checkpoints(&arguments).await?),
        Command::Suspend(arguments) => print(&cli::suspend(&arguments).await?),
        Command::Resume(arguments) => print(&cli::resume(&arguments).await?),
        Command::Scale(arguments) => print(&cli::scale(&arguments).await?),
        Command::Report(arguments) => print(&cli::report(&arguments).await?),
        Command::Compare(arguments) => print(&cli::compare(&arguments)?),
        Command::Trace(arguments) => print(&cli::trace(&arguments)?),
        Command::PassRates(arguments) => print(&cli::pass_rates(&arguments)?),
        Command::Init(arguments) => print(&cli::init(&arguments)?),
        Command::Validate(arguments) => {
            until_closed(cli::validate(&arguments, &mut std::io::stdout()))
        }
        Command::Render(arguments) => print(&cli::render(&arguments)?),
        Command::Crd => print(&cli::crd()?),
        Command::Completion(arguments) => {
            let parser = program::parser(false);
            until_closed(cli::completion(&arguments, parser, &mut std::io::stdout()))
        }
        Command::Complete(arguments) => {
            print(&cli::complete(&arguments, program::parser(true)).await)
        }
    }
}

async fn run_jobs(arguments: &RunArgs) -> anyhow::Result<ExitCode> {
    match local::run(arguments).await? {
        Outcome::Succeeded(runs) if arguments.compare => {
            print(&cli::compare_all(runs, arguments.dir.join("comparison.html"))?)
        }
        Outcome::Succeeded(_) => Ok(ExitCode::SUCCESS),
        Outcome::Ended(code) => Ok(code),
    }
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    let line = format!("{}\n", printable(text.trim_end()));
    until_closed(std::io::stdout().write_all(line.as_bytes()).map_err(anyhow::Error::from))
}

/// Success if the reader of the output, such as `head`, has read enough.
fn until_closed(result: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    match result {
        Err(error)
            if error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) => {}
        result => result?,
    }
    Ok(ExitCode::SUCCESS)
}
