//! The coordinator of a run: data, rollouts, rewards, the journal, batches, weight-sync orders and evaluation. It knows no Kubernetes and no libtorch.

pub mod data;
pub mod journal;
pub mod pack;
pub mod reward;
pub mod text;
