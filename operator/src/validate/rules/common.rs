//! Checks and names that several rules share.

use rljob_crds::names::{
    CONTAINER_COORDINATOR, CONTAINER_ENGINE, CONTAINER_REWARDS, CONTAINER_TRAINER,
};

use rljob_crds::algorithm::OptimizerSpec;
use rljob_crds::union::{self, Union};

use crate::validate::Problem;

/// Field of the spec of a role, and name of its main container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role<'a> {
    pub field: &'a str,
    pub container: &'static str,
}

impl<'a> Role<'a> {
    /// The role of a set of engines at `field`.
    pub fn of_engines(field: &'a str) -> Self {
        Self { field, container: CONTAINER_ENGINE }
    }
}

pub const TRAINER: Role<'static> = Role { field: "trainer", container: CONTAINER_TRAINER };
pub const VERIFIERS: Role<'static> = Role { field: "verifiers", container: CONTAINER_REWARDS };
pub const COORDINATOR: Role<'static> =
    Role { field: "coordinator", container: CONTAINER_COORDINATOR };

pub fn is_dns_label(text: &str) -> bool {
    let inner =
        text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    inner && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

/// Checks a union: exactly one of its members is set.
pub(super) fn check_union<T: Union>(path: &str, value: &T, problems: &mut Vec<Problem>) {
    // A union of plain data serializes as an object without the members that are not set.
    let value = serde_json::to_value(value).unwrap_or_default();
    let members: Vec<_> =
        T::MEMBERS.iter().map(|name| (*name, value.get(name).is_some())).collect();
    exactly_one(path, &members, problems);
}

/// Checks that exactly one of the members is set.
pub fn exactly_one(path: &str, members: &[(&str, bool)], problems: &mut Vec<Problem>) {
    let set: Vec<&str> = members.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    if set.len() != 1 {
        let all: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
        let found = if set.is_empty() { "none".to_owned() } else { set.join(" and ") };
        let message = format!("{}, found {found}", union::message(&all));
        problems.push(Problem::new(path, message));
    }
}

/// Rules of an optimizer at `path`, in a run of `steps` steps, if that is known.
pub(super) fn check_optimizer(
    path: &str,
    optimizer: &OptimizerSpec,
    steps: Option<u32>,
    problems: &mut Vec<Problem>,
) {
    if let Some(steps) = steps.filter(|steps| optimizer.warmup_steps > *steps) {
        let field = format!("{path}.warmupSteps");
        let message =
            format!("must not exceed training.steps = {steps}: set {field}={steps} or less");
        problems.push(Problem::new(field, message));
    }
    if optimizer.epsilon <= 0.0 {
        problems.push(Problem::new(format!("{path}.epsilon"), "must be above 0"));
    }
}
