//! Supervisor and learner of a trainer pod: model, sharding, the algorithm's arithmetic, optimizer, checkpoints, weight publication.

pub mod algorithm;
pub mod model;
