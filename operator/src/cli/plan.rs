//! Plans of steps for a terminal and for programs: the calls of a step in their order, with the
//! data that they pass on. Pure.
//!
//! ```text
//! STAGE  CALL             MODEL      WORKERS
//! 6.1    infer reference  reference  learners
//!        batch → referenceLogprobs
//! ```

use std::collections::BTreeSet;

use rljob_crds::dataflow::{Call, Data, Lane, Model, Phase, Plan};
use serde::Serialize;

use super::status::Output;
use super::table::table;

/// The plan of a job.
#[derive(Serialize, Debug)]
pub struct JobPlan {
    /// `namespace/name`.
    pub job: String,
    #[serde(flatten)]
    pub plan: Plan,
    /// The data of the plan, with their types.
    data: Vec<Form>,
}

/// Type, shape and unit of data.
#[derive(Serialize, Debug)]
struct Form {
    name: &'static str,
    form: &'static str,
}

impl JobPlan {
    /// A plan with the forms of its data.
    pub fn new(job: String, plan: Plan) -> Self {
        let of_calls = plan.calls().flat_map(|call| call.inputs.iter().chain(&call.outputs));
        let data: BTreeSet<Data> = of_calls.chain(&plan.given).copied().collect();
        let form = |data: Data| Form { name: data.name(), form: data.form() };
        let data = data.into_iter().map(form).collect();
        Self { job, plan, data }
    }
}

/// The plans in a format.
///
/// # Errors
/// Serialization fails.
pub fn print(plans: &[JobPlan], output: Output) -> anyhow::Result<String> {
    Ok(match output {
        Output::Text => plans.iter().map(text).collect::<Vec<_>>().join("\n\n"),
        Output::Json => serde_json::to_string_pretty(plans)?,
        Output::Yaml => serde_yaml::to_string(plans)?,
    })
}

fn text(job: &JobPlan) -> String {
    let calls: Vec<(String, &Call)> = numbered(&job.plan).collect();
    let rows: Vec<[String; 4]> = calls.iter().map(|(number, call)| row(number, call)).collect();
    let table_of_calls = table(["STAGE", "CALL", "MODEL", "WORKERS"], &rows);
    let mut lines = table_of_calls.lines();
    let head = lines.next().unwrap_or_default().to_owned();
    let of_call = |(line, (_, call)): (&str, &(String, &Call))| format!("{line}\n{}", flow(call));
    let calls = lines.zip(&calls).map(of_call);
    let calls: Vec<String> = std::iter::once(head).chain(calls).collect();
    let forms: Vec<[String; 2]> =
        job.data.iter().map(|data| [data.name, data.form].map(str::to_owned)).collect();
    let parts = [
        title(job),
        calls.join("\n"),
        order(&job.plan).join("\n"),
        table(["DATA", "FORM (S samples, T tokens, N trained tokens)"], &forms),
    ];
    parts.join("\n\n")
}

fn title(job: &JobPlan) -> String {
    let Plan { algorithm, batch_size, group_size, updates, engines, learners, .. } = &job.plan;
    let name = &job.job;
    let count =
        |count: u32, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let others = [
        (job.plan.evaluation_engines, "evaluation engine"),
        (job.plan.reward_engines, "reward engine"),
        (job.plan.teacher_engines, "teacher engine"),
    ];
    let others = others.into_iter().filter(|(engines, _)| *engines > 0);
    let others: Vec<String> = others.map(|(engines, noun)| count(engines, noun)).collect();
    let workers = [&[count(*engines, "engine")], &others[..], &[count(*learners, "learner")]];
    let workers = workers.concat().join(", ");
    let rows = match job.plan.given.first() {
        Some(Data::Demonstrations) => count(*batch_size, "demonstration"),
        Some(Data::Pairs) => count(*batch_size, "pair"),
        _ => format!("{} of {}", count(*batch_size, "prompt"), count(*group_size, "sample")),
    };
    if *learners == 0 {
        let engines = [&[count(*engines, "engine")], &others[..]].concat().join(", ");
        return format!("rljob {name}: {algorithm}, without steps; {engines}");
    }
    format!(
        "rljob {name}: a step of {algorithm} with {rows}, {}; {workers}",
        count(*updates, "update")
    )
}

/// Names of the lanes of a stage: `a` to `z`, then `-27` and so on.
fn lane_names() -> impl Iterator<Item = String> {
    ('a'..='z').map(String::from).chain((27..).map(|number| format!("-{number}")))
}

/// The calls with their numbers: stage, lane if there are several, place in the lane if it has
/// several calls.
fn numbered(plan: &Plan) -> impl Iterator<Item = (String, &Call)> {
    (1..).zip(&plan.stages).flat_map(|(stage, of_stage)| {
        let has_lanes = of_stage.lanes.len() > 1;
        lane_names().zip(&of_stage.lanes).flat_map(move |(name, lane)| {
            let letter = if has_lanes { name } else { String::new() };
            let has_order = lane.calls.len() > 1;
            (1..).zip(&lane.calls).map(move |(place, call)| {
                let place = if has_order { format!(".{place}") } else { String::new() };
                (format!("{stage}{letter}{place}"), call)
            })
        })
    })
}

fn row(number: &str, call: &Call) -> [String; 4] {
    let model = call.model.map_or("-", Model::name);
    let texts = [number, &call.name, model];
    let [number, name, model] = texts.map(str::to_owned);
    [number, name, model, call.workers.to_string()]
}

/// Inputs and outputs of a call.
fn flow(call: &Call) -> String {
    let names = |data: &[Data]| data.iter().map(|data| data.name()).collect::<Vec<_>>().join(", ");
    let mut inputs = names(&call.inputs);
    if !call.later_inputs.is_empty() {
        inputs = format!("{inputs}; in later turns {}", names(&call.later_inputs));
    }
    format!("       {inputs} → {}", names(&call.outputs))
}

/// Sentences about the order of the calls, and notes of calls.
fn order(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let range = |(first, last): (usize, usize)| {
        if first == last { format!("Stage {first}") } else { format!("Stages {first} to {last}") }
    };
    let rollouts = plan.stages_of(&[Phase::Rollouts]);
    if let Some(rollouts) = rollouts {
        let range = range(rollouts);
        lines.push(format!("{range}: each sample continues as soon as its inputs exist."));
    }
    for (number, stage) in (1..).zip(&plan.stages) {
        if stage.lanes.len() > 1 {
            let names = lane_names().zip(&stage.lanes);
            let names: Vec<String> = names.map(|(name, _)| format!("{number}{name}")).collect();
            lines.push(format!("{} run side by side.", names.join(", ")));
        }
        lines.extend(stage.lanes.iter().filter_map(|lane| shared(number, lane)));
    }
    if let (Some(rollouts), true) = (rollouts, plan.steps_ahead > 0) {
        let training = plan.stages_of(&[Phase::Training]).map(range).unwrap_or_default();
        let (range, ahead) = (range(rollouts), plan.steps_ahead);
        let plural = if ahead == 1 { "" } else { "s" };
        lines.push(format!(
            "{range} of up to {ahead} later step{plural} run beside {} of a step.",
            training.to_lowercase()
        ));
    }
    let note = |call: &Call| Some(format!("{}: {}.", call.name, call.note.as_ref()?));
    lines.extend(plan.calls().filter_map(note));
    lines
}

/// Order of several calls of the same workers.
fn shared(number: usize, lane: &Lane) -> Option<String> {
    if lane.calls.len() < 2 {
        return None;
    }
    let is_training = lane.calls.iter().all(|call| call.updates > 0);
    let order = if is_training { "alternate by minibatch" } else { "run one after another" };
    Some(format!("Calls of stage {number} on the {} {order}.", lane.workers))
}
