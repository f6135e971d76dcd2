//! Command line of the kubectl plugin `kubectl-rljob`, which is `rljob` by another name: it has the
//! subcommands that do not run jobs on this machine, and shows RLJobs instead of local runs.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgMatches, Command};

/// File name of the plugin: kubectl runs it for `kubectl rljob`.
pub const FILE: &str = "kubectl-rljob";
/// Hidden subcommand that `rljob run` uses.
const INTERNAL: &str = "with-parent";
/// Subcommands for local runs only.
const LOCAL: [&str; 5] = ["run", "evaluate", "compare", "trace", "pass-rates"];
/// Subcommand that shows all RLJobs without a name.
const MAY_SHOW_ALL: &str = "status";

/// Help of a subcommand for RLJobs, in place of that for both local runs and RLJobs.
struct Help {
    name: &'static str,
    about: &'static str,
    /// Below `about` in the long help.
    more: &'static str,
    /// Arguments and their help.
    arguments: &'static [(&'static str, &'static str)],
}

const COMMANDS: [Help; 5] = [
    Help {
        name: "status",
        about: "Show the state of RLJobs",
        more: "Several are shown as a table, one as a tree: roles with pods and nodes, engines \
            with the versions of their weights, progress, the last failure and incident, and what \
            it waits for. Needs the permission to get or list `rljobs`; without that to list \
            `pods`, pods are not shown.",
        arguments: &[(
            "watch",
            "Show the state again whenever it changes, until the run has ended. Needs the name of \
                an RLJob",
        )],
    },
    Help {
        name: "top",
        about: "Show curves and the newest numbers of an RLJob until it has ended",
        more: "Curves start with the command, with the values of the status, which is written at \
            most once a minute; pods, engines and conditions are shown as by `status`. Without a \
            terminal, the output is printed once. Needs the permissions to get `rljobs` and to \
            list `pods`.",
        arguments: &[],
    },
    Help {
        name: "dashboard",
        about: "Serve a page with the curves, samples and evaluations of an RLJob, until it is \
            interrupted",
        more: "The page is that of the coordinator of a job that has not ended, over a forwarded \
            port. Only programs on this machine reach it. Needs the permissions to get `rljobs`, \
            and to get and create `pods/portforward`.",
        arguments: &[],
    },
    Help {
        name: "logs",
        about: "Print the logs of an RLJob's pods",
        more: "With `--follow` also of pods and containers that start later. Needs the permissions \
            to get `rljobs`, to list `pods` and to get `pods/log`.",
        arguments: &[
            (
                "process",
                "A role (coordinator, inference, trainer), one of its pods (trainer-0) or the \
                    name of a pod. Default: all",
            ),
            ("tail", "Number of last lines of each container to print"),
            ("previous", "Print the logs of the containers before their last restart"),
            (
                "container",
                "The container, for example `rewards` of the coordinator. Default: the main one",
            ),
            (
                "attempt",
                "Print only lines of this attempt of the learner group, of coordinator and \
                    trainers. `--tail` counts lines of all attempts",
            ),
            (
                "output",
                "`json` prints the JSON lines as pods write them, and an object with `pod` and \
                    `message` for each line of another program",
            ),
        ],
    },
    Help {
        name: "report",
        about: "Write the page of an RLJob to a file, and print its path",
        more: "A report is the page of `dashboard` with the data of the run in one file. The \
            coordinator of a running job makes it, which is reached over a forwarded port. Needs \
            the permissions to get `rljobs`, and to get and create `pods/portforward`.",
        arguments: &[(
            "output",
            "File to write; an existing one is replaced. Default: `report-NAME.html`",
        )],
    },
];

const CHECKPOINTS: [Help; 4] = [
    Help {
        name: "list",
        about: "List the complete checkpoints of an RLJob",
        more: "The status has the newest 100. Needs the permission to get `rljobs`.",
        arguments: &[],
    },
    Help {
        name: "verify",
        about: "Verify that the files of an RLJob's checkpoints match their manifests",
        more: "Names, sizes and SHA-256 of the complete checkpoints are compared in the \
            coordinator's container, beside the run. Needs the permissions to get `rljobs`, and to \
            get and create `pods/exec`.",
        arguments: &[("step", "Verify the checkpoint of this step only")],
    },
    Help {
        name: "copy",
        about: "Copy a checkpoint of a running RLJob to a folder, from which other jobs start \
            with `restoreFrom`",
        more: "The checkpoint is read in the coordinator's container. Files are compared with the \
            manifest while they are copied; the manifest is written last. Needs the permissions to \
            get `rljobs`, and to get and create `pods/exec`.",
        arguments: &[],
    },
    Help {
        name: "restore",
        about: "Return a suspended RLJob to a checkpoint, from whose step it continues",
        more: "Sets `spec.rollbackTo` as field manager `rljob-cli`. When the job resumes, its \
            coordinator discards the steps, samples, checkpoints, exports and lines of files after \
            the step, which are sampled and trained again. Without `--discard` they are listed, \
            and nothing changes. To keep both, start another RLJob with `restoreFrom`. Needs the \
            permissions to get and patch `rljobs`.",
        arguments: &[],
    },
];

/// Whether a program of this name is the plugin.
pub fn is_plugin(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == FILE)
}

/// The command line of the plugin, from that of `rljob`.
pub fn command(rljob: Command) -> Command {
    let mut command = rljob.mut_subcommand(INTERNAL, |command| command.hide(true));
    for name in LOCAL {
        command = command.mut_subcommand(name, |_| without_arguments(name));
    }
    command = of_cluster(command, &COMMANDS).mut_subcommand("checkpoints", |command| {
        of_cluster(command, &CHECKPOINTS)
            .about("List, verify, copy or restore checkpoints of RLJobs")
    });
    command.name(FILE).bin_name("kubectl rljob").display_name("kubectl rljob")
}

/// A hidden subcommand that accepts any arguments: what it answers does not depend on them.
fn without_arguments(name: &'static str) -> Command {
    let arguments = Arg::new("arguments").num_args(0..).trailing_var_arg(true);
    Command::new(name).hide(true).disable_help_flag(true).arg(arguments.allow_hyphen_values(true))
}

/// Subcommands whose argument is the name of an RLJob.
fn of_cluster(parent: Command, commands: &[Help]) -> Command {
    commands.iter().fold(parent, |parent, help| {
        parent.mut_subcommand(help.name, |command| {
            let command = command
                .about(help.about)
                .long_about(format!("{}.\n\n{}", help.about, help.more))
                .mut_arg("cluster", |argument| argument.hide(true).default_value("true"))
                .mut_arg("target", |argument| {
                    let is_required = help.name != MAY_SHOW_ALL;
                    argument.value_name("NAME").help("Name of the RLJob").required(is_required)
                });
            help.arguments.iter().fold(command, |command, (name, text)| {
                command.mut_arg(name, |argument| argument.help(*text))
            })
        })
    })
}

/// What to do instead of a subcommand for local runs only.
pub fn local_only(matches: &ArgMatches) -> Option<String> {
    let name = matches.subcommand_name().filter(|name| LOCAL.contains(name))?;
    Some(format!("`{name}` is for runs on this machine: use `rljob {name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::program::parser;

    #[test]
    fn commands_of_local_runs_are_rejected_whatever_their_arguments() {
        let local = |words: &[&str]| {
            let words = [&[FILE], words].concat();
            let matches = parser(true).try_get_matches_from(words).unwrap();
            local_only(&matches)
        };
        assert_eq!(local(&["checkpoints", "list", "sums"]), None);
        assert_eq!(local(&["checkpoints", "verify", "sums"]), None);
        assert_eq!(local(&["checkpoints", "restore", "sums", "--step=2"]), None);
        assert_eq!(local(&["report", "sums"]), None);
        for (words, expected) in [
            (&["run"][..], "`run` is for runs on this machine: use `rljob run`"),
            (&["run", "--help"], "`run` is"),
            (&["evaluate", "-f", "a.yaml", "--model", "b"], "`evaluate` is"),
            (&["compare"], "`compare` is"),
            (&["trace", "runs", "--step=1"], "`trace` is"),
        ] {
            let answer = local(words).unwrap_or_default();
            assert!(answer.starts_with(expected), "{words:?}: {answer}");
        }
    }

    #[test]
    fn help_of_the_plugin_describes_rljobs() {
        assert!(is_plugin(&"/usr/bin/kubectl-rljob".into()));
        assert!(!is_plugin(&"/opt/kubectl-rljob/rljob".into()));
        let mut parser = parser(true);
        let help = parser.render_long_help().to_string();
        assert!(help.contains("Usage: kubectl rljob <COMMAND>"), "{help}");
        assert!(!help.contains("Run the jobs of a file on this machine"), "{help}");
        parser.build();
        let checkpoints = parser.find_subcommand("checkpoints").unwrap();
        let mut commands: Vec<Command> = checkpoints.get_subcommands().cloned().collect();
        let names = ["status", "top", "dashboard", "logs", "report", "checkpoints"];
        commands.extend(names.iter().map(|name| parser.find_subcommand(name).unwrap().clone()));
        for command in commands.iter_mut().filter(|command| !command.is_hide_set()) {
            let help = command.render_long_help().to_string();
            for text in ["--cluster", "un directory", "local run", "DIR"] {
                assert!(!help.contains(text), "{text}: {help}");
            }
        }
    }
}
