//! Dataflow of a step: the calls that a spec declares, with typed inputs and outputs, and the plan
//! that orders them. Pure.
//!
//! ```text
//!  spec ─▶ rollouts  calls of engines, coordinator, reward runner and servers ┐
//!       ─▶ learners  calls of learners, from the signals of the objective ────┴▶ planner ─▶ Plan
//! ```
//!
//! The learners run the calls of [`learner_calls`] and no others: their passes follow
//! [`Signal`](crate::algorithm::Signal), and a test compares the calls that a step records with
//! those of its plan.

mod call;
mod data;
mod learners;
mod planner;
mod rollouts;
mod step;

pub use call::{Call, Kind, LearnerCall, Model, Phase, Workers};
pub use data::Data;
pub use learners::learner_calls;
pub use planner::{Lane, PlanError, Stage, stages};
pub use step::{Plan, plan};

#[cfg(test)]
mod tests;
