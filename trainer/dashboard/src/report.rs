//! Report of runs: the page with embedded responses. It needs no server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::{Value, json};

use crate::document::document;
use crate::overview::RunInfo;
use crate::run::RunFiles;

/// The report of a run as HTML, or of several runs with their curves in the same figures.
///
/// # Errors
/// A file of a run cannot be read.
pub fn report(runs: &[(&RunInfo, &RunFiles)]) -> io::Result<String> {
    let mut responses = BTreeMap::new();
    let mut summaries = Vec::new();
    for (number, (info, files)) in runs.iter().enumerate() {
        summaries.push(files.summary(number, info));
        add_run(number, info, files, &mut responses)?;
    }
    responses.insert("v1/runs".to_owned(), json!({"runs": summaries}));
    Ok(document(Some(&responses)))
}

/// Adds the responses about a run.
fn add_run(
    number: usize,
    info: &RunInfo,
    files: &RunFiles,
    responses: &mut BTreeMap<String, Value>,
) -> io::Result<()> {
    let path = format!("v1/runs/{number}");
    let mut overview = serde_json::to_value(files.overview(info))?;
    let overview_steps = |name: &str, overview: &Value| -> Vec<u32> {
        let steps = overview.get(name).and_then(Value::as_array);
        steps.into_iter().flatten().filter_map(|step| Some(step.as_u64()? as u32)).collect()
    };
    let sampled = some(&overview_steps("sampleSteps", &overview));
    for (step, neighbors) in with_neighbors(&sampled) {
        if let Some(page) = files.samples(step, 0)? {
            responses.insert(format!("{path}/samples?step={step}"), embed(page, neighbors)?);
        }
    }
    let evaluated = some(&overview_steps("answerSteps", &overview));
    for (step, neighbors) in with_neighbors(&evaluated) {
        if let Some(page) = files.answers(step, 0)? {
            responses.insert(format!("{path}/answers?step={step}"), embed(page, neighbors)?);
        }
    }
    if let Some(overview) = overview.as_object_mut() {
        overview.insert("sampleSteps".to_owned(), json!(sampled));
        overview.insert("answerSteps".to_owned(), json!(evaluated));
    }
    responses.insert(path, overview);
    Ok(())
}

/// First, middle and last step, without duplicates.
fn some(steps: &[u32]) -> Vec<u32> {
    let last = steps.len().saturating_sub(1);
    let shown = BTreeSet::from([0, steps.len() / 2, last]);
    shown.into_iter().filter_map(|index| steps.get(index).copied()).collect()
}

/// Embedded steps before and after a step.
type Neighbors = (Option<u32>, Option<u32>);

fn with_neighbors(steps: &[u32]) -> impl Iterator<Item = (u32, Neighbors)> {
    let at = |index: Option<usize>| steps.get(index?).copied();
    steps
        .iter()
        .enumerate()
        .map(move |(index, step)| (*step, (at(index.checked_sub(1)), at(index.checked_add(1)))))
}

/// The first page of a step; others are not embedded.
fn embed(page: crate::samples::Page, (previous, next): Neighbors) -> io::Result<Value> {
    Ok(serde_json::to_value(crate::samples::Page { previous, next, rest: None, ..page })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_middle_and_last_steps_are_embedded() {
        assert_eq!(some(&[]), Vec::<u32>::new());
        assert_eq!(some(&[4]), [4]);
        assert_eq!(some(&[1, 2]), [1, 2]);
        assert_eq!(some(&[1, 2, 3, 4, 5]), [1, 3, 5]);
    }

    #[test]
    fn a_report_has_the_records_of_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, lines: &str| std::fs::write(folder.path().join(name), lines);
        write("metrics.jsonl", "{\"step\":1,\"attempt\":0,\"reward\":0.25}\n").unwrap();
        write("samples.jsonl", "{\"step\":1,\"prompt\":\"a</script>\",\"reward\":1.0}\n").unwrap();
        let mut files = RunFiles::new(folder.path());
        files.refresh().unwrap();
        let spec = json!({
            "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
            "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}},
            "algorithm": {"dpo": {}}, "training": {"steps": 7},
        });
        let plan = rljob_crds::dataflow::plan(&serde_json::from_value(spec).unwrap()).ok();
        let name = "lab/sums".to_owned();
        let info = RunInfo { name, total_steps: 7, plan, ..RunInfo::default() };
        let page = report(&[(&info, &files), (&info, &files)]).unwrap();
        let (_, rest) = page.split_once("id=\"responses\">").unwrap();
        let json: BTreeMap<String, Value> =
            serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(json["v1/runs"]["runs"][0]["name"], "lab/sums");
        assert_eq!(json["v1/runs"]["runs"][1]["run"], 1);
        assert_eq!(json["v1/runs/1"], json["v1/runs/0"]);
        assert_eq!(json["v1/runs/0"]["columns"]["reward"], json!([0.25]));
        let first = &json["v1/runs/0"]["plan"]["stages"][0]["lanes"][0]["calls"][0];
        assert_eq!((&first["name"], &first["inputs"]), (&json!("pack"), &json!(["pairs"])));
        assert_eq!(json["v1/runs/0/samples?step=1"]["samples"][0]["prompt"], "a</script>");
    }
}
