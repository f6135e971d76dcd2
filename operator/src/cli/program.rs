//! Command line of `rljob`, and of the same program as the kubectl plugin `kubectl-rljob`: the
//! plugin has the subcommands that do not run jobs on this machine, and shows RLJobs instead of
//! local runs.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{cli, local};

/// File name of the plugin: kubectl runs it for `kubectl rljob`.
pub const PLUGIN: &str = "kubectl-rljob";
/// Subcommands that read or write files of local runs.
const LOCAL_COMMANDS: [&str; 5] = ["run", "evaluate", "compare", "trace", "with-parent"];
/// Subcommands of `checkpoints` for files of local runs.
const LOCAL_CHECKPOINTS: [&str; 3] = ["verify", "copy", "restore"];
/// Subcommands for a local run or, with `--cluster`, an RLJob.
const EITHER_COMMANDS: [&str; 5] = ["status", "top", "dashboard", "logs", "report"];

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

/// Whether a program of this name is the kubectl plugin.
pub fn is_plugin(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == PLUGIN)
}

/// The command line of `rljob`, or of the plugin.
pub fn parser(is_plugin: bool) -> clap::Command {
    let mut parser = Arguments::command();
    if !is_plugin {
        return parser;
    }
    for name in LOCAL_COMMANDS {
        parser = parser.mut_subcommand(name, |command| command.hide(true));
    }
    for name in EITHER_COMMANDS {
        parser = parser.mut_subcommand(name, of_cluster);
    }
    parser = parser.mut_subcommand("checkpoints", |command| {
        LOCAL_CHECKPOINTS
            .iter()
            .fold(command.mut_subcommand("list", of_cluster), |command, name| {
                command.mut_subcommand(name, |command| command.hide(true))
            })
    });
    parser.name(PLUGIN).bin_name("kubectl rljob").display_name("kubectl rljob")
}

/// A subcommand whose argument is the name of an RLJob.
fn of_cluster(command: clap::Command) -> clap::Command {
    command
        .mut_arg("cluster", |argument| argument.hide(true).default_value("true"))
        .mut_arg("target", |argument| argument.value_name("NAME").help("Name of the RLJob"))
}

/// The subcommand, if it reads runs on this machine only.
fn local_command(matches: &clap::ArgMatches) -> Option<String> {
    match matches.subcommand()? {
        (name @ ("run" | "evaluate" | "compare" | "trace"), _) => Some(name.to_owned()),
        ("checkpoints", of) => {
            let name = of.subcommand_name().filter(|name| LOCAL_CHECKPOINTS.contains(name))?;
            Some(format!("checkpoints {name}"))
        }
        _ => None,
    }
}

/// What to do instead of a subcommand that reads runs on this machine only.
fn instead_of(name: &str) -> String {
    let local = format!("`{name}` is for runs on this machine: use `rljob {name}`");
    match name {
        "checkpoints copy" | "checkpoints restore" => format!(
            "{local}; on a cluster, another RLJob starts from a checkpoint of this one with \
             restoreFrom.rljob: {{name: NAME, step: N}}"
        ),
        _ => local,
    }
}

/// Parses the arguments of this process. Prints help and errors, and exits then.
pub fn parse() -> Command {
    let mut words = std::env::args_os();
    let is_plugin = words.next().is_some_and(|program| is_plugin(&program));
    let mut parser = parser(is_plugin);
    let matches = parser.get_matches_mut();
    if let Some(name) = local_command(&matches).filter(|_| is_plugin) {
        parser.error(clap::error::ErrorKind::InvalidSubcommand, instead_of(&name)).exit();
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
    fn commands_of_local_runs_are_known_to_the_plugin() {
        let local = |words: &[&str]| {
            let words = [&[PLUGIN], words].concat();
            let matches = parser(true).try_get_matches_from(words).unwrap();
            local_command(&matches)
        };
        assert_eq!(local(&["checkpoints", "list", "sums"]), None);
        let verify = local(&["checkpoints", "verify", "sums"]);
        assert_eq!(verify.as_deref(), Some("checkpoints verify"));
        let restore = local(&["checkpoints", "restore", "sums", "--step=2"]);
        assert_eq!(restore.as_deref(), Some("checkpoints restore"));
        assert_eq!(local(&["trace", "runs"]).as_deref(), Some("trace"));
        assert_eq!(local(&["report", "sums"]), None);
    }

    #[test]
    fn the_plugin_has_the_name_of_its_file_and_shows_rljobs() {
        assert!(is_plugin(&"/usr/bin/kubectl-rljob".into()));
        assert!(!is_plugin(&"/opt/kubectl-rljob/rljob".into()));
        let help = parser(true).render_long_help().to_string();
        assert!(help.contains("Usage: kubectl rljob <COMMAND>"), "{help}");
        assert!(!help.contains("Run the jobs of a file on this machine"), "{help}");
        let parse = |is_plugin: bool, words: &[&str]| {
            let matches = parser(is_plugin).try_get_matches_from(words).unwrap();
            let Command::Status(arguments) = Arguments::from_arg_matches(&matches).unwrap().command
            else {
                panic!("not status")
            };
            (arguments.place.cluster, arguments.target)
        };
        let name = Some("a".to_owned());
        assert_eq!(parse(true, &[PLUGIN, "status", "a"]), (true, name.clone()));
        assert_eq!(parse(false, &["rljob", "status", "a"]), (false, name.clone()));
        assert_eq!(parse(false, &["rljob", "status", "--cluster", "a"]), (true, name));
    }
}
