//! The algorithms' arithmetic: advantages, losses and their derivatives by the log-probabilities.
//! No IO, no collectives, no model.
//!
//! ```text
//!  the step's table ─▶ table: shaping, normalization, aggregation ─▶ advantage and weight of every sample
//!  log-probabilities ─▶ kl, behavior ─▶ grpo (or sft) ─▶ loss and its derivative by each log-probability
//! ```
//! Where a sum over ranks is needed, the parts are returned and the learner reduces them. Tensors
//! are over the N trained tokens of a micro-batch. Formulas and golden values are AReaL's
//! (github.com/areal-project/AReaL, `areal/utils/functional`) unless a paper is named.

pub mod behavior;
pub mod grpo;
pub mod kl;
pub mod normalization;
pub mod sft;
pub mod table;
