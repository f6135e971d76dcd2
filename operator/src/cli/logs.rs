//! `rljob logs`: prints the logs of a local run, each line with its process, or those of an RLJob's
//! pods.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::connection::{Connection, PlaceArgs};
use super::log_lines::{LineFormat, LogOutput};
use super::pod_logs::{self, Selection};
use crate::local::directory::{LOCK_FILE, LOGS_DIR};
use crate::local::inspect;
use crate::terminal::printable;

/// Interval of reads with `--follow`.
const POLL: Duration = Duration::from_millis(300);
/// Bytes per read.
const CHUNK: u64 = 1 << 20;

/// Print the logs of a run's processes.
///
/// With `--cluster`, of an RLJob's pods; with `--follow` also of pods and containers that start
/// later. Needs the permissions to get `rljobs`, to list `pods` and to get `pods/log`.
#[derive(clap::Args, Debug, Default)]
pub struct LogsArgs {
    /// The run directory, `RUNS/<namespace>/<name>`; with `--cluster`, the name of an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: String,
    /// One process (coordinator, inference-0, trainer-0, …), or all of a role (inference, trainer);
    /// with `--cluster`, also the name of a pod. Default: all.
    #[arg(value_name = "PROCESS", index = 2)]
    pub process: Option<String>,
    /// Follow the logs until the run ends.
    #[arg(short, long)]
    pub follow: bool,
    /// Number of last lines of each process to print.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<usize>,
    /// With `--cluster`: print the logs of the containers before their last restart.
    #[arg(short, long, conflicts_with = "follow")]
    pub previous: bool,
    /// With `--cluster`: the container, for example `rewards` of the coordinator. Default: the main
    /// one.
    #[arg(short, long)]
    pub container: Option<String>,
    /// With `--cluster`: print only lines of this attempt of the learner group, of coordinator and
    /// trainers. `--tail` counts lines of all attempts.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u64>,
    /// With `--cluster`: print the JSON lines as pods write them, and an object with `pod` and
    /// `message` for each line of another program, instead of text.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: LogOutput,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Prints the logs to `out`.
///
/// # Errors
/// The run or process does not exist, or a log cannot be read.
pub async fn logs(arguments: &LogsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    arguments.place.check()?;
    arguments.place.check_folder(Some(&arguments.target))?;
    if !arguments.place.cluster {
        ensure!(
            !arguments.previous && arguments.container.is_none(),
            "--previous and --container need --cluster: a local log has all attempts"
        );
        ensure!(
            arguments.attempt.is_none() && arguments.output == LogOutput::Text,
            "--attempt and --output need --cluster: local logs are text"
        );
        return local_logs(arguments, out);
    }
    let connection = Connection::open(&arguments.place.connection).await?;
    let selection = Selection {
        job: &arguments.target,
        part: arguments.process.as_deref(),
        container: arguments.container.as_deref(),
        previous: arguments.previous,
        tail: arguments.tail,
        lines: LineFormat { output: arguments.output, attempt: arguments.attempt, has_pod: false },
    };
    if arguments.follow {
        pod_logs::follow(&connection, &selection, out).await
    } else {
        pod_logs::print(&connection, &selection, out).await
    }
}

fn local_logs(arguments: &LogsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let directory = Path::new(&arguments.target);
    let mut offsets = BTreeMap::new();
    let mut first = true;
    loop {
        // Checked before the files are read, so that the last lines are printed.
        let running = inspect::is_locked(&directory.join(LOCK_FILE))?;
        let files = files(directory, arguments.process.as_deref())?;
        let (several, is_last) = (files.len() > 1, !arguments.follow || !running);
        for (name, path) in files {
            let offset = offsets.entry(name.clone()).or_insert(0);
            let read = print(
                &path,
                if several { &name } else { "" },
                *offset,
                arguments.tail.filter(|_| first),
                is_last,
                out,
            );
            *offset = read.with_context(|| format!("failed to print {}", path.display()))?;
        }
        first = false;
        if is_last {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// Whether a process has this name or role: `trainer-0` has the role `trainer`.
fn is_selected(name: &str, selected: &str) -> bool {
    let number = name.strip_prefix(selected).and_then(|rest| rest.strip_prefix('-'));
    name == selected
        || number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Logs by process, filtered by `process`: a name or a role.
fn files(directory: &Path, process: Option<&str>) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let folder = directory.join(LOGS_DIR);
    let entries = fs::read_dir(&folder).with_context(|| {
        format!(
            "{} is not a run directory: failed to list {}",
            directory.display(),
            folder.display()
        )
    })?;
    let paths = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let mut all: Vec<(String, PathBuf)> = paths
        .filter_map(|path| Some((path.file_stem()?.to_string_lossy().into_owned(), path)))
        .collect();
    all.sort();
    let names: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    all.retain(|(name, _)| process.is_none_or(|process| is_selected(name, process)));
    match process {
        Some(process) if all.is_empty() => bail!(
            "no process or role `{process}` has a log in {}; found {}",
            folder.display(),
            names.join(", ")
        ),
        _ => Ok(all),
    }
}

/// Prints the complete lines from `offset`, without characters that act on a terminal; returns the
/// offset of their end. With `is_last`, prints an incomplete line too.
fn print(
    path: &Path,
    name: &str,
    offset: u64,
    tail: Option<usize>,
    is_last: bool,
    out: &mut impl Write,
) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut offset = match tail {
        Some(lines) => start_of_last(&mut file, lines)?,
        None => offset,
    };
    loop {
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(CHUNK).read_to_end(&mut bytes)?;
        let full = bytes.len() as u64 == CHUNK;
        // Lines longer than a chunk are printed in parts.
        let is_part = full && !bytes.contains(&b'\n');
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let ends = is_last && !full;
        for line in lines.filter(|line| is_part || ends || line.ends_with(b"\n")) {
            offset = offset.saturating_add(line.len() as u64);
            if !name.is_empty() {
                write!(out, "{name} | ")?;
            }
            let line = String::from_utf8_lossy(line).replace("\r\n", "\n");
            out.write_all(printable(&line).as_bytes())?;
            if ends && !line.ends_with('\n') {
                writeln!(out)?;
            }
        }
        out.flush()?;
        if !full {
            return Ok(offset);
        }
    }
}

/// Offset of the last `lines` lines, an incomplete one included.
fn start_of_last(file: &mut File, lines: usize) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut last = [b'\n'];
    if end > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let Some(mut lines) = lines.checked_sub(usize::from(last != *b"\n")) else { return Ok(end) };
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![0; CHUNK.min(end) as usize];
        file.read_exact(&mut bytes)?;
        // Each byte with the offset of the next one.
        let after = (start..=end).rev().zip(bytes.iter().rev());
        for (offset, _) in after.filter(|(_, byte)| **byte == b'\n') {
            let Some(left) = lines.checked_sub(1) else { return Ok(offset) };
            lines = left;
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::inspect::test_support::run_directory;

    #[test]
    fn lines_have_the_name_of_their_process_and_unknown_processes_are_errors() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        fs::write(directory.log("trainer-0"), "th\u{1b}[2Jree\r\nkilled he").unwrap();
        let print = |process: Option<&str>, tail| {
            let arguments = LogsArgs {
                target: directory.path().display().to_string(),
                process: process.map(ToOwned::to_owned),
                tail,
                ..LogsArgs::default()
            };
            let mut out = Vec::new();
            local_logs(&arguments, &mut out)
                .map(|()| String::from_utf8(out).unwrap())
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            print(None, None).unwrap(),
            "coordinator | one\ncoordinator | two\ntrainer-0 | th\u{fffd}[2Jree\n\
             trainer-0 | killed he\n"
        );
        assert_eq!(print(Some("coordinator"), None).unwrap(), "one\ntwo\n");
        assert_eq!(print(None, Some(1)).unwrap(), "coordinator | two\ntrainer-0 | killed he\n");
        let trainer = "th\u{fffd}[2Jree\nkilled he\n";
        assert_eq!(print(Some("trainer"), None).unwrap(), trainer);
        fs::write(directory.log("trainer-1"), "four\n").unwrap();
        fs::write(directory.log("trainer-frozen-0"), "five\n").unwrap();
        assert_eq!(
            print(Some("trainer"), Some(1)).unwrap(),
            "trainer-0 | killed he\ntrainer-1 | four\n"
        );
        assert_eq!(print(Some("trainer-frozen"), None).unwrap(), "five\n");
        let unknown = print(Some("engine"), None).unwrap_err();
        assert!(
            unknown.starts_with("no process or role `engine` has a log in ")
                && unknown.ends_with("; found coordinator, trainer-0, trainer-1, trainer-frozen-0"),
            "{unknown}"
        );
    }
}
