//! Memory of a learner on a GPU: an estimate of its parts before anything is loaded, the choice of
//! the layers that are computed again in the backward pass, and errors of libtorch as one line.
//!
//! [`plan`] and [`fit`] are pure.

pub mod fit;
pub mod out_of_memory;
pub mod plan;
mod report;
mod start;

pub use out_of_memory::{OutOfMemory, Phase};
pub use plan::{MemoryPlan, Settings};
pub use report::{of_all_ranks, of_group_ranks};
pub use start::{Planned, PlannedGroup, described, described_group, planned, planned_group};
