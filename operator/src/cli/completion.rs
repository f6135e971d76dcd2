//! `rljob completion`: scripts that complete command lines of shells and of kubectl.
//!
//! Shells get a static script. kubectl runs `kubectl_complete-rljob` with the words after
//! `kubectl rljob`; that script runs the hidden subcommand `complete`, which prints one completion
//! per line and a directive, as kubectl's library cobra expects. It knows the names of RLJobs.

use std::io::Write;
use std::time::Duration;

use clap::Arg;
use clap_complete::Shell;
use kube::ResourceExt;
use kube::api::ListParams;
use rljob_crds::RLJob;

use super::connection::{Connection, ConnectionArgs};

/// Directive of cobra: do not complete names of files.
const NO_FILES: u8 = 4;
/// Directive of cobra: complete names of files.
const FILES: u8 = 0;
/// Time for a list of RLJobs.
const LIMIT: Duration = Duration::from_secs(2);
/// Script of the plugin's completions.
const KUBECTL_SCRIPT: &str = "#!/bin/sh
# Completions of `kubectl rljob`. Save it as `kubectl_complete-rljob` in a folder of PATH.
exec kubectl rljob complete -- \"$@\"
";

/// What the script is for.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Target {
    Bash,
    Zsh,
    Fish,
    /// `kubectl rljob`: save the script as `kubectl_complete-rljob`, executable and in PATH.
    Kubectl,
}

/// Prints a completion script, for example for `source <(rljob completion bash)`.
#[derive(clap::Args, Debug)]
pub struct CompletionArgs {
    #[arg(value_enum)]
    pub shell: Target,
}

/// Prints completions for kubectl.
#[derive(clap::Args, Debug)]
pub struct CompleteArgs {
    /// Words after `kubectl rljob`; the last one is incomplete.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Writes the script of `rljob` to `out`.
///
/// # Errors
/// The output fails.
pub fn completion(
    arguments: &CompletionArgs,
    mut parser: clap::Command,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let shell = match arguments.shell {
        Target::Bash => Shell::Bash,
        Target::Zsh => Shell::Zsh,
        Target::Fish => Shell::Fish,
        Target::Kubectl => return Ok(out.write_all(KUBECTL_SCRIPT.as_bytes())?),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut parser, "rljob", &mut script);
    Ok(out.write_all(&script)?)
}

/// Returns the completions of the plugin's command line.
pub async fn complete(arguments: &CompleteArgs, mut parser: clap::Command) -> String {
    parser.build();
    let completions = match completions(&parser, &arguments.words) {
        Completions::Words(words) => (words, NO_FILES),
        Completions::Files => (Vec::new(), FILES),
        Completions::Jobs(connection) => {
            let names = tokio::time::timeout(LIMIT, names(&connection)).await;
            // A completion cannot show an error.
            (names.ok().and_then(Result::ok).unwrap_or_default(), NO_FILES)
        }
    };
    let last = arguments.words.last().map_or("", String::as_str);
    let (words, directive) = completions;
    let mut text = String::new();
    for word in words.iter().filter(|word| word.starts_with(last)) {
        text.push_str(word);
        text.push('\n');
    }
    format!("{text}:{directive}")
}

#[derive(Debug, PartialEq, Eq)]
enum Completions {
    Words(Vec<String>),
    Files,
    /// Names of RLJobs.
    Jobs(ConnectionArgs),
}

/// Completions of the last word. Pure.
fn completions(parser: &clap::Command, words: &[String]) -> Completions {
    let (last, before) =
        words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let (mut command, mut connection) = (parser, ConnectionArgs::default());
    // The flag whose value is next, and the number of positional arguments.
    let (mut flag, mut positional): (Option<&Arg>, usize) = (None, 0);
    for word in before {
        if let Some(flag) = flag.take() {
            set(&mut connection, flag.get_id().as_str(), word);
        } else if let Some(text) = word.strip_prefix('-') {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            let found = command.get_arguments().find(|argument| is_named(argument, name));
            match found.filter(|argument| argument.get_action().takes_values()) {
                Some(argument) if text.contains('=') => {
                    set(&mut connection, argument.get_id().as_str(), value);
                }
                argument => flag = argument,
            }
        } else if let Some(found) = command.find_subcommand(word) {
            (command, positional) = (found, 0);
        } else {
            positional = positional.saturating_add(1);
        }
    }
    if let Some(flag) = flag {
        return values(flag).map_or(Completions::Files, Completions::Words);
    }
    if last.starts_with('-') {
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let flags = shown.filter_map(Arg::get_long).map(|long| format!("--{long}"));
        return Completions::Words(flags.collect());
    }
    if command.has_subcommands() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        return Completions::Words(shown.map(|command| command.get_name().to_owned()).collect());
    }
    match command.get_positionals().nth(positional) {
        Some(argument) if ["name", "target"].contains(&argument.get_id().as_str()) => {
            Completions::Jobs(connection)
        }
        Some(argument) => values(argument).map_or(Completions::Files, Completions::Words),
        None => Completions::Words(Vec::new()),
    }
}

/// Whether a flag has this name after its first hyphen: `n` or `-namespace`.
fn is_named(argument: &Arg, name: &str) -> bool {
    let long = name.strip_prefix('-');
    let short = || argument.get_short().is_some_and(|short| name == short.to_string());
    (long.is_some() && argument.get_long() == long) || short()
}

fn set(connection: &mut ConnectionArgs, id: &str, value: &str) {
    match id {
        "kubeconfig" => connection.kubeconfig = Some(value.into()),
        "context" => connection.context = Some(value.to_owned()),
        "namespace" => connection.namespace = Some(value.to_owned()),
        _ => {}
    }
}

/// The possible values of an argument, if they are limited.
fn values(argument: &Arg) -> Option<Vec<String>> {
    let values = argument.get_possible_values();
    let names: Vec<_> = values.iter().map(|value| value.get_name().to_owned()).collect();
    (!names.is_empty()).then_some(names)
}

async fn names(arguments: &ConnectionArgs) -> anyhow::Result<Vec<String>> {
    let connection = Connection::open(arguments).await?;
    let jobs = connection.api::<RLJob>().list_metadata(&ListParams::default()).await?;
    Ok(jobs.items.iter().map(ResourceExt::name_any).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::program;

    fn of(words: &[&str]) -> Completions {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let mut parser = program::parser(true);
        parser.build();
        completions(&parser, &words)
    }

    #[test]
    fn kubectl_completes_subcommands_flags_values_and_jobs() {
        let Completions::Words(commands) = of(&[""]) else { panic!("no words") };
        assert!(commands.contains(&"status".to_owned()), "{commands:?}");
        assert!(!commands.contains(&"run".to_owned()), "{commands:?}");
        let Completions::Words(flags) = of(&["status", "--"]) else { panic!("no words") };
        assert!(flags.contains(&"--namespace".to_owned()), "{flags:?}");
        assert!(!flags.contains(&"--cluster".to_owned()), "{flags:?}");
        let words = |words: &[&str]| {
            Completions::Words(words.iter().map(|&word| word.to_owned()).collect())
        };
        assert_eq!(of(&["completion", ""]), words(&["bash", "zsh", "fish", "kubectl"]));
        let namespace = |name: &str| {
            Completions::Jobs(ConnectionArgs {
                namespace: Some(name.to_owned()),
                ..ConnectionArgs::default()
            })
        };
        assert_eq!(of(&["status", "-n", "lab", "s"]), namespace("lab"));
        assert_eq!(of(&["status", "--namespace=lab", ""]), namespace("lab"));
        assert_eq!(of(&["validate", "--file", ""]), Completions::Files);
    }

    #[test]
    fn every_shell_gets_a_script() {
        for (target, expected) in [
            (Target::Bash, "complete -F _rljob"),
            (Target::Zsh, "#compdef rljob"),
            (Target::Fish, "complete -c rljob"),
            (Target::Kubectl, "exec kubectl rljob complete"),
        ] {
            let mut script = Vec::new();
            let arguments = CompletionArgs { shell: target };
            completion(&arguments, program::parser(false), &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains(expected), "{target:?}: {script}");
        }
    }
}
