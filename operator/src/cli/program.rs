//! Command line of `rljob`, and of the same program as the kubectl plugin.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::plugin;
use crate::{cli, local};

/// Reinforcement-learning post-training of language models as one Kubernetes object.
#[derive(Parser)]
#[command(name = "rljob", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the jobs of a file on this machine.
    Run(local::RunArgs),
    Evaluate(local::EvaluateArgs),
    Status(cli::StatusArgs),
    Top(cli::TopArgs),
    Dashboard(cli::DashboardArgs),
    Logs(cli::LogsArgs),
    Events(cli::EventsArgs),
    Checkpoints(cli::CheckpointsArgs),
    Suspend(cli::SuspendArgs),
    Resume(cli::ResumeArgs),
    Scale(cli::ScaleArgs),
    Report(cli::ReportArgs),
    Compare(cli::CompareArgs),
    Trace(cli::TraceArgs),
    PassRates(cli::PassRatesArgs),
    Init(cli::InitArgs),
    /// Check job files and report all problems with their lines.
    Validate(cli::ValidateArgs),
    /// Print the objects that the operator would create for a job.
    Render(cli::RenderArgs),
    /// Print the CustomResourceDefinition.
    Crd,
    /// Print a script that completes command lines of a shell.
    Completion(cli::CompletionArgs),
    /// Print completions of a command line for kubectl.
    #[command(hide = true)]
    Complete(cli::CompleteArgs),
    /// Run a program and kill it with all descendants when standard input closes.
    #[command(hide = true)]
    WithParent(cli::WithParentArgs),
}

/// The command line of `rljob`, or of the plugin.
pub fn parser(is_plugin: bool) -> clap::Command {
    if is_plugin { plugin::command(Arguments::command()) } else { Arguments::command() }
}

/// Parses the arguments of this process. Prints help and errors, and exits then.
pub fn parse() -> Command {
    let mut words = std::env::args_os();
    let is_plugin = words.next().is_some_and(|program| plugin::is_plugin(&program));
    let mut parser = parser(is_plugin);
    let matches = parser.get_matches_mut();
    if let Some(message) = plugin::local_only(&matches).filter(|_| is_plugin) {
        parser.error(clap::error::ErrorKind::InvalidSubcommand, message).exit();
    }
    match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments.command,
        Err(error) => error.format(&mut parser).exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_are_consistent() {
        parser(false).debug_assert();
        parser(true).debug_assert();
    }

    #[test]
    fn the_plugin_shows_rljobs() {
        let parse = |is_plugin: bool, words: &[&str]| {
            let matches = parser(is_plugin).try_get_matches_from(words).unwrap();
            let Command::Status(arguments) = Arguments::from_arg_matches(&matches).unwrap().command
            else {
                panic!("not status")
            };
            (arguments.place.cluster, arguments.target)
        };
        let name = Some("a".to_owned());
        assert_eq!(parse(true, &["kubectl-rljob", "status", "a"]), (true, name.clone()));
        assert_eq!(parse(false, &["rljob", "status", "a"]), (false, name.clone()));
        assert_eq!(parse(false, &["rljob", "status", "--cluster", "a"]), (true, name));
    }
}
