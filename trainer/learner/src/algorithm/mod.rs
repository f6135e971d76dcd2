//! The algorithms' arithmetic: advantages, losses and their derivatives by the log-probabilities. No IO, no collectives, no model.
//!
//! Where a sum over ranks is needed, the parts are returned and the learner reduces them. Tensors are over the N trained tokens of a micro-batch.

pub mod grpo;
pub mod sft;
