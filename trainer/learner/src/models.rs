//! The models of a rank by role: the policy with its optimizer, and frozen models beside it.
//!
//! Each role has its shape, its parameters and, if it is trained, its optimizer and its part of a
//! checkpoint. Frozen models are read from the model folder at every start.

use std::collections::BTreeMap;
use std::rc::Rc;

use rljob_crds::algorithm::{ModelRole, OptimizerSpec};
use tch::Kind;

use crate::checkpoint::{CheckpointError, Restored, Snapshot};
use crate::fsdp::{FrozenParameters, ShardedParameters};
use crate::model::{Model, ModelError, PackedTokens, TokenLogprobs};
use crate::optimizer::Optimizer;
use crate::ranks::Ranks;

/// A model with an optimizer.
#[derive(Debug)]
pub struct TrainedModel {
    /// Shape and head.
    pub model: Model,
    /// fp32 master weights and gradients.
    pub parameters: ShardedParameters,
    /// Moments and counters.
    pub optimizer: Optimizer,
}

/// A model without gradients.
#[derive(Debug)]
pub struct FrozenModel {
    /// Shape and head.
    pub model: Model,
    /// Weights in the compute kind.
    pub parameters: FrozenParameters,
}

/// The models of a rank.
#[derive(Debug)]
pub struct Models {
    /// The model that is trained and exported.
    pub policy: TrainedModel,
    /// The others.
    pub frozen: BTreeMap<ModelRole, FrozenModel>,
}

/// A forward pass of a role.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// The algorithm's `model_roles` do not list it.
    #[error("the algorithm has no {0:?} model")]
    Missing(ModelRole),
    /// The pass failed.
    #[error("a forward pass of the {0:?} model failed")]
    Pass(ModelRole, #[source] ModelError),
}

impl TrainedModel {
    /// A model that continues from its part of a checkpoint; passes compute in `compute`.
    pub fn restored(
        model: Model,
        ranks: &Rc<Ranks>,
        spec: OptimizerSpec,
        compute: Kind,
        restored: Restored,
    ) -> Self {
        let (masters, moments) = restored
            .blocks
            .into_iter()
            .map(|[weights, exp_avg, exp_avg_sq]| (weights, [exp_avg, exp_avg_sq]))
            .unzip();
        let numels = model.layout().block_numels();
        let parameters = ShardedParameters::new(Rc::clone(ranks), compute, &numels, masters);
        let optimizer = Optimizer::restored(Rc::clone(ranks), spec, moments, restored.optimizer);
        Self { model, parameters, optimizer }
    }

    /// A copy of this rank's part of a checkpoint.
    ///
    /// # Errors
    /// libtorch cannot copy a tensor.
    pub fn snapshot(&self) -> Result<Snapshot, CheckpointError> {
        let blocks = self.parameters.shards().iter().zip(self.optimizer.moments());
        Snapshot::take(
            blocks.map(|(shard, [exp_avg, exp_avg_sq])| [&shard.master, exp_avg, exp_avg_sq]),
        )
    }
}

impl Models {
    /// Log-probabilities and entropies of the trained tokens under the model of a role, without
    /// gradients. A collective.
    ///
    /// # Errors
    /// The role has no model, or the pass fails.
    pub fn logprobs(
        &mut self,
        role: ModelRole,
        packed: &PackedTokens,
        temperature: f64,
    ) -> Result<TokenLogprobs, RoleError> {
        let logprobs = if role == ModelRole::Policy {
            let TrainedModel { model, parameters, .. } = &mut self.policy;
            model.logprobs(parameters, packed, temperature)
        } else {
            let FrozenModel { model, parameters } =
                self.frozen.get_mut(&role).ok_or(RoleError::Missing(role))?;
            model.logprobs(parameters, packed, temperature)
        };
        logprobs.map_err(|error| RoleError::Pass(role, error))
    }
}
