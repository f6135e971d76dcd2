//! `rljob trace`: writes what the processes of a local run did in a step as a Chrome trace.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rljob_crds::names::TRACES_FILE;
use rljob_dashboard::records::Tail;
use rljob_protocol::trace::StepTrace;

use crate::local::chrome_trace::document;
use crate::local::inspect::{Run, find_one};

/// Most steps of a trace.
const MAX_STEPS: u32 = 1000;

/// Write a step of a local run as a Chrome trace, for ui.perfetto.dev or chrome://tracing.
///
/// It shows beside each other what learners, engines and the coordinator did: passes and waits,
/// requests and weight updates, rollouts and evaluations. The run may still be running. Of a long
/// run, the newest steps have a trace.
#[derive(clap::Args, Debug)]
pub struct TraceArgs {
    /// Run directory, or a folder with one run (default: `runs`).
    #[arg(value_name = "DIR", default_value = "runs", hide_default_value = true)]
    pub target: PathBuf,
    /// Last step of the trace. Default: the newest one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub step: Option<u32>,
    /// Number of steps, up to the last one.
    #[arg(
        long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STEPS)),
    )]
    pub steps: u32,
    /// File to write. Default: `trace-N.json` in the run directory.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Writes the file; returns the line to print.
///
/// # Errors
/// There is no run, or the step has no trace.
pub fn trace(arguments: &TraceArgs) -> anyhow::Result<String> {
    let directory = find_one(&arguments.target)?;
    let traces = read(&directory, arguments.step, arguments.steps)?;
    let last = traces.last().map_or(0, |trace| trace.step);
    let run = Run::read(&directory)?;
    let name = format!("{}/{}", run.config.namespace, run.config.name);
    let default = || directory.join(format!("trace-{last}.json"));
    let path = arguments.output.clone().unwrap_or_else(default);
    std::fs::write(&path, document(&name, &traces).to_string())
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(format!("{}: open it in https://ui.perfetto.dev", path.display()))
}

/// The traces of `count` steps up to `last`, or up to the newest one.
fn read(directory: &Path, last: Option<u32>, count: u32) -> anyhow::Result<Vec<StepTrace>> {
    let path = directory.join(TRACES_FILE);
    let reason = "the run has no step yet, or is of a release without traces";
    ensure!(path.exists(), "{} does not exist: {reason}", path.display());
    let (mut kept, mut range) = (VecDeque::<StepTrace>::new(), None::<(u32, u32)>);
    Tail::new(path.clone())
        .each(|trace: StepTrace| {
            let first = range.map_or(trace.step, |(first, _)| first);
            range = Some((first, trace.step));
            if last.is_none_or(|last| trace.step <= last) {
                kept.push_back(trace);
                if kept.len() > count as usize {
                    kept.pop_front();
                }
            }
            Ok(())
        })
        .with_context(|| format!("failed to read {}", path.display()))?;
    let Some((first, newest)) = range else {
        anyhow::bail!("{} has no step yet", path.display());
    };
    let found = kept.back().map_or(0, |trace| trace.step);
    ensure!(
        last.is_none_or(|last| last == found),
        "step {} has no trace: {} has those of steps {first} to {newest}",
        last.unwrap_or_default(),
        path.display()
    );
    Ok(kept.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::inspect::test_support::run_directory;

    #[test]
    fn the_newest_steps_or_those_up_to_a_step_are_written() {
        let runs = tempfile::tempdir().unwrap();
        let run = run_directory(runs.path());
        let error = |step| {
            let arguments =
                TraceArgs { target: runs.path().to_owned(), step, steps: 1, output: None };
            format!("{:#}", trace(&arguments).unwrap_err())
        };
        let file = run.path().join(TRACES_FILE);
        let missing = "does not exist: the run has no step yet, or is of a release without traces";
        assert_eq!(error(None), format!("{} {missing}", file.display()));
        std::fs::write(&file, "").unwrap();
        assert_eq!(error(None), format!("{} has no step yet", file.display()));
        let line = |step: u32| {
            let start = f64::from(step) * 10.0;
            format!(
                "{{\"step\":{step},\"attempt\":0,\"spans\":[{{\"process\":\"learners\",\
                 \"name\":\"train step {step}\",\"start\":{start},\"seconds\":2.0}}]}}\n"
            )
        };
        std::fs::write(&file, (3..=6).map(line).collect::<String>()).unwrap();
        let steps = |step, count| -> Vec<u32> {
            let traces = read(run.path(), step, count).unwrap();
            traces.iter().map(|trace| trace.step).collect()
        };
        assert_eq!(steps(None, 1), [6]);
        assert_eq!(steps(None, 2), [5, 6]);
        assert_eq!(steps(Some(4), 8), [3, 4]);
        let range = format!("{} has those of steps 3 to 6", file.display());
        assert_eq!(error(Some(2)), format!("step 2 has no trace: {range}"));
        assert_eq!(error(Some(7)), format!("step 7 has no trace: {range}"));
        let arguments =
            TraceArgs { target: runs.path().to_owned(), step: Some(5), steps: 2, output: None };
        let path = run.path().join("trace-5.json");
        let expected = format!("{}: open it in https://ui.perfetto.dev", path.display());
        assert_eq!(trace(&arguments).unwrap(), expected);
        let document: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(document["otherData"]["run"], "lab/sums");
        let names: Vec<&str> = document["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["process_name", "train step 4", "train step 5"]);
    }
}
