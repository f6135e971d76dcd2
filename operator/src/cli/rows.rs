//! Rows of local runs and RLJobs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use kube::ResourceExt;
use rljob_crds::RLJob;
use rljob_crds::names::CONDITION_SUCCEEDED;
use rljob_crds::status::{MemoryStatus, RoleStatus, TrainerGroupStatus};
use rljob_protocol::status::GroupState;
use serde::Serialize;

use super::job_view::outcome;
use super::table;
use super::tree::memory_parts;
use super::waiting::{ready_engines, waits_for};
use crate::local::inspect::{self, Run};
use crate::local::lines;
use crate::status::planned;

/// Row of the table.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// `namespace/name`.
    name: String,
    status: String,
    /// Absent if the run cannot be read.
    step: Option<u32>,
    total_steps: Option<u32>,
    reward: Option<f64>,
    message: String,
    /// Memory of the learners' GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStatus>,
    /// Engines that only evaluate, while the run has processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation_engines: Option<RoleStatus>,
    /// Engines of a reward model, while the run has processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    reward_engines: Option<RoleStatus>,
    /// Engines of a teacher, while the run has processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher_engines: Option<RoleStatus>,
    /// Groups of `trainer.groups`, while the run has processes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trainer_groups: Vec<TrainerGroupStatus>,
    #[serde(skip)]
    pub has_ended: bool,
}

/// Rows of the run directory `dir`, or of those in the folder.
///
/// # Errors
/// There is no run directory.
pub fn runs(dir: &Path) -> anyhow::Result<Vec<Row>> {
    let row = |directory: &PathBuf| match Run::read(directory) {
        Ok(run) => run_row(&run),
        Err(error) => unreadable_row(dir, directory, &error),
    };
    Ok(inspect::find(dir)?.iter().map(row).collect())
}

fn run_row(run: &Run) -> Row {
    let message = match &run.state.failure {
        Some(cause) if !run.running => cause.clone(),
        _ => {
            let report = run.report.as_ref().filter(|_| run.running);
            report.and_then(waits_for).unwrap_or_else(|| run.directory.display().to_string())
        }
    };
    let plan = run.report.as_ref().and_then(|report| report.memory.as_ref());
    // The last report of a run that has ended is about processes that have exited.
    let report = run.report.as_ref().filter(|_| run.running);
    Row {
        name: format!("{}/{}", run.config.namespace, run.config.name),
        memory: plan.map(|plan| planned(plan, run.metrics.as_ref())),
        evaluation_engines: report.and_then(|report| ready_engines(&report.evaluation_engines)),
        reward_engines: report.and_then(|report| ready_engines(&report.reward_engines)),
        teacher_engines: report.and_then(|report| ready_engines(&report.teacher_engines)),
        trainer_groups: report.iter().flat_map(|report| &report.groups).map(group).collect(),
        status: run.status().to_owned(),
        step: Some(run.metrics.as_ref().map_or(0, |metrics| metrics.step)),
        total_steps: run.total_steps(),
        has_ended: !run.running,
        reward: run
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.get(rljob_protocol::metrics::REWARD)),
        message,
    }
}

fn group(group: &GroupState) -> TrainerGroupStatus {
    let running = group.supervisors.iter().filter(|own| own.alive && own.learners > 0);
    TrainerGroupStatus {
        name: group.name.clone(),
        desired: number(group.supervisors.len()),
        ready: number(running.count()),
        attempt: group.attempt,
        restarts: group.restarts,
        memory: group.memory.as_ref().map(|plan| planned(plan, None)),
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A run whose files cannot be read. The others are still shown.
fn unreadable_row(dir: &Path, directory: &Path, error: &anyhow::Error) -> Row {
    let name = directory.strip_prefix(dir).ok().filter(|name| name.components().next().is_some());
    Row {
        name: name.unwrap_or(directory).display().to_string(),
        memory: None,
        evaluation_engines: None,
        reward_engines: None,
        teacher_engines: None,
        trainer_groups: Vec::new(),
        status: "Unreadable".to_owned(),
        step: None,
        total_steps: None,
        has_ended: true,
        reward: None,
        message: format!("{error:#}"),
    }
}

/// Row of an RLJob.
pub fn job_row(job: &RLJob) -> Row {
    let status = job.status.clone().unwrap_or_default();
    let summary = status.conditions.iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
    let progress = status.progress.as_ref();
    Row {
        name: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()),
        status: summary.map_or_else(|| "Unknown".to_owned(), |summary| summary.reason.clone()),
        step: Some(progress.map_or(0, |progress| progress.step)),
        total_steps: job
            .spec
            .training
            .known_steps()
            .or_else(|| progress.map(|progress| progress.total_steps)),
        has_ended: outcome(job).is_some(),
        reward: progress.and_then(|progress| progress.reward),
        message: summary.map(|summary| summary.message.clone()).unwrap_or_default(),
        memory: status.memory.clone(),
        evaluation_engines: status.evaluation.clone(),
        reward_engines: status.reward.clone(),
        teacher_engines: status.teacher.clone(),
        trainer_groups: status.trainer_groups.clone(),
    }
}

/// The rows as a table; below a single one, its engines besides those of rollouts, its groups and
/// the memory of its learners.
pub fn table(rows: &[Row]) -> String {
    let head = ["NAME", "STATUS", "STEP", "REWARD", "MESSAGE"];
    let cells = rows.iter().map(|row| {
        let reward = row.reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.3}"));
        let steps = row.step.zip(row.total_steps);
        [
            row.name.clone(),
            row.status.clone(),
            steps.map_or_else(|| "-".to_owned(), |(step, total)| format!("{step}/{total}")),
            reward,
            lines::one_line(&row.message),
        ]
    });
    let mut text = table::table(head, &cells.collect::<Vec<_>>());
    if let [row] = rows {
        push_details(&mut text, row);
    }
    text
}

/// What a table has no column for.
fn push_details(text: &mut String, row: &Row) {
    for (noun, engines) in [
        ("evaluation", &row.evaluation_engines),
        ("reward", &row.reward_engines),
        ("teacher", &row.teacher_engines),
    ] {
        if let Some(RoleStatus { desired, ready }) = engines {
            let _ = write!(text, "\n\n{noun} engines  {ready} of {desired} ready");
        }
    }
    for group in &row.trainer_groups {
        let TrainerGroupStatus { name, desired, ready, attempt, restarts, .. } = group;
        let restarts = format!("attempt {attempt}, counted restarts {restarts}");
        let _ = write!(text, "\n\ngroup {name}  {ready} of {desired} ready, {restarts}");
        push_memory(text, &format!("memory of group {name}"), group.memory.as_ref());
    }
    push_memory(text, "memory", row.memory.as_ref());
}

fn push_memory(text: &mut String, name: &str, memory: Option<&MemoryStatus>) {
    let Some(memory) = memory else { return };
    let _ = write!(text, "\n\n{name}  {memory}");
    for part in memory_parts(memory) {
        let _ = write!(text, "\n  {part}");
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::{
        CoordinatorStatus, EngineCondition, EngineState, SupervisorState,
    };

    use super::*;
    use crate::decide::test_support::report;

    #[test]
    fn evaluation_engines_and_groups_are_below_a_single_run() {
        let engine = |index, state| EngineState {
            name: format!("evaluation-{index}"),
            state,
            version: None,
            silent_seconds: None,
            uid: None,
            unsuitable: None,
        };
        let supervisor = |learners| SupervisorState {
            name: "trainer-frozen-0".to_owned(),
            alive: true,
            learners,
            uid: None,
            gpu_fault: None,
        };
        let plan = serde_json::from_value(serde_json::json!({
            "parts": [{"name": "reference model", "bytes": 3_u64 << 30}],
            "totalBytes": 4_u64 << 30, "usableBytes": 8_u64 << 30, "fits": true,
            "sharding": "Full", "recomputedLayers": 0, "layers": 28,
        }));
        let own = GroupState {
            name: "frozen".to_owned(),
            attempt: 2,
            restarts: 1,
            running: true,
            last_failure: None,
            supervisors: vec![supervisor(2), supervisor(0)],
            memory: Some(plan.unwrap()),
        };
        let report = CoordinatorStatus {
            evaluation_engines: vec![
                engine(0, EngineCondition::Ready),
                engine(1, EngineCondition::Unreachable),
            ],
            groups: vec![own],
            ..report()
        };
        let mut row = job_row(&crate::validate::test_support::minimal());
        row.evaluation_engines = ready_engines(&report.evaluation_engines);
        row.trainer_groups = report.groups.iter().map(group).collect();
        let expected = "evaluation engines  1 of 2 ready

group frozen  1 of 2 ready, attempt 2, counted restarts 1

memory of group frozen  4.0 GiB planned of 8.0 GiB on each GPU; sharding Full, 0 of 28 layers are \
computed again
  reference model    3.0 GiB";
        let text = table(&[row]);
        assert_eq!(text.split_once("\n\n").unwrap().1, expected);
    }

    #[test]
    fn rows_of_rljobs_show_their_conditions() {
        let mut job = crate::validate::test_support::minimal();
        let condition = serde_json::json!({
            "type": "Succeeded", "status": "False", "reason": "Failed", "message": "out of\nmemory",
            "lastTransitionTime": null,
        });
        let text = serde_json::json!({
            "conditions": [condition], "progress": {"step": 3, "totalSteps": 10, "reward": 0.25},
        });
        let text = text.to_string().replace("null", "\"2026-01-01T00:00:00Z\"");
        job.status = Some(serde_json::from_str(&text).unwrap());
        assert_eq!(
            table(&[job_row(&job)]),
            "NAME      STATUS  STEP  REWARD  MESSAGE\nlab/sums  Failed  3/10  0.250   out of | \
                memory"
        );
    }
}
