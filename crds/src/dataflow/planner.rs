//! Order of calls: stages by their inputs, and lanes by their workers.
//!
//! ```text
//!  stage 1          stage 2                     stage 3
//!  lane a: call ─┬▶ lane a: call, then call ─┬▶ lane a: call
//!                └▶ lane b: call ────────────┘
//! ```

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::call::{Call, Phase, Workers};
use super::data::Data;

/// Calls whose inputs earlier stages make. Lanes run side by side.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// In the order of their first calls.
    pub lanes: Vec<Lane>,
}

/// Calls of the same workers, which run one after another.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Where they run.
    pub workers: Workers,
    /// In the order of their declaration.
    pub calls: Vec<Call>,
}

/// Calls that cannot be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// `spec.algorithm` does not set exactly one algorithm.
    NoAlgorithm,
    /// An input that is neither given nor made by a call.
    Missing {
        /// Name of the call.
        call: String,
        /// Its input.
        data: Data,
    },
    /// Calls that wait for each other, each for the next one, and the last one for the first.
    Cycle(Vec<String>),
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAlgorithm => formatter.write_str("set exactly one member of spec.algorithm"),
            Self::Missing { call, data } => write!(
                formatter,
                "call `{call}` needs {}, which no call makes: declare a call with this output",
                data.name()
            ),
            Self::Cycle(calls) => write!(
                formatter,
                "calls wait for each other: `{}`; remove an input of one of them",
                calls.join("`, `")
            ),
        }
    }
}

impl std::error::Error for PlanError {}

/// Orders calls. `given` exists before the step. A call waits for all calls that make one of its
/// inputs; inputs of later turns must be made, but are not waited for.
///
/// # Errors
/// An input is missing, or calls wait for each other.
pub fn stages(calls: Vec<Call>, given: &[Data]) -> Result<Vec<Stage>, PlanError> {
    let producers = producers(&calls);
    let is_made = |data: &Data| given.contains(data) || producers.contains_key(data);
    for call in &calls {
        let mut inputs = call.inputs.iter().chain(&call.later_inputs);
        if let Some(data) = inputs.find(|data| !is_made(data)) {
            return Err(PlanError::Missing { call: call.name.clone(), data: *data });
        }
    }
    let before = |call: &Call| -> Vec<usize> {
        call.inputs.iter().filter_map(|data| producers.get(data)).flatten().copied().collect()
    };
    let before: Vec<Vec<usize>> = calls.iter().map(before).collect();
    let levels = levels(&before).map_err(|unordered| {
        let name = |index: &usize| calls.get(*index).map(|call| call.name.clone());
        PlanError::Cycle(cycle(&before, &unordered).iter().filter_map(name).collect())
    })?;
    let mut by_level = BTreeMap::<usize, Vec<Call>>::new();
    for (call, level) in calls.into_iter().zip(levels) {
        by_level.entry(level).or_default().push(call);
    }
    Ok(by_level.into_values().map(stage).collect())
}

/// Indices of the calls that make each datum.
fn producers(calls: &[Call]) -> BTreeMap<Data, Vec<usize>> {
    let mut producers = BTreeMap::<Data, Vec<usize>>::new();
    for (index, call) in calls.iter().enumerate() {
        for data in &call.outputs {
            producers.entry(*data).or_default().push(index);
        }
    }
    producers
}

/// Level of each call, given the calls before it: 0 without any, else one above the highest of
/// them. The error has the calls that are in a cycle or after one.
fn levels(before: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut levels = BTreeMap::<usize, usize>::new();
    // Each pass but the last one finds a level.
    for _ in 0..=before.len() {
        for (index, before) in before.iter().enumerate() {
            let of_before: Option<Vec<usize>> =
                before.iter().map(|index| levels.get(index).copied()).collect();
            if let Some(of_before) = of_before {
                let highest = of_before.iter().max();
                levels.insert(index, highest.map_or(0, |level| level.saturating_add(1)));
            }
        }
    }
    let all = 0..before.len();
    let unordered: Vec<usize> = all.filter(|index| !levels.contains_key(index)).collect();
    if unordered.is_empty() { Ok(levels.into_values().collect()) } else { Err(unordered) }
}

/// A cycle among calls of which each waits for another one, in the order of their waits.
fn cycle(before: &[Vec<usize>], unordered: &[usize]) -> Vec<usize> {
    let waits_for = |index: usize| {
        let before = before.get(index)?;
        before.iter().copied().find(|other| unordered.contains(other))
    };
    let (mut path, mut next) = (Vec::new(), unordered.first().copied());
    while let Some(index) = next {
        if let Some(start) = path.iter().position(|earlier| *earlier == index) {
            return path.split_off(start);
        }
        path.push(index);
        next = waits_for(index);
    }
    path
}

/// Calls of rollouts have a lane each: workers handle several samples at the same time.
fn stage(calls: Vec<Call>) -> Stage {
    let mut lanes = Vec::<Lane>::new();
    for call in calls {
        let same = |lane: &&mut Lane| {
            let is_rollout = |call: &Call| call.phase == Phase::Rollouts;
            let is_shared = is_rollout(&call) || lane.calls.iter().any(is_rollout);
            lane.workers == call.workers && !is_shared
        };
        match lanes.iter_mut().find(same) {
            Some(lane) => lane.calls.push(call),
            None => lanes.push(Lane { workers: call.workers.clone(), calls: vec![call] }),
        }
    }
    Stage { lanes }
}
