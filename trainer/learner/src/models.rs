//! Models of a rank by role: the policy, and the other models that the algorithm needs.
//!
//! ```text
//!  role         head             optimizer   checkpoint            initial weights
//!  policy       language model   yes         yes                   model folder or seed
//!  reference    language model   no          no                    those of the policy
//!  critic       scalar           yes         yes, under its role   those of the policy, head 0
//!               value            yes         yes, under its role   0
//!  reward       scalar           no          no                    given by the algorithm
//! ```
//! A critic with a value head is an output of the policy: its passes run the policy's layers.
//! The policy of an algorithm that trains a reward model has a scalar head, which begins with 0.
//! With `spec.lora`, trained models are adapters over one frozen base, the initial weights of the
//! policy, which is also the reference.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod critic;

use std::collections::BTreeMap;
use std::rc::Rc;

use rljob_crds::algorithm::{ModelRole, OptimizerSpec};
use tch::Tensor;

use crate::checkpoint::{
    CheckpointError, ModelShape, Restored, Snapshot, SnapshotMemory, model_shape,
};
use crate::fsdp::{
    AdaptedParameters, Base, FrozenParameters, Passes, ShardedParameters, TrainedParameters,
};
use crate::model::lora::Lora;
use crate::model::{Model, ModelError, PackedTokens, Parameters, TokenLogprobs, TopTokens};
use crate::optimizer::{Optimizer, OptimizerError};
use crate::ranks::Ranks;

/// A model with an optimizer.
#[derive(Debug)]
pub struct TrainedModel {
    /// Shape and head.
    pub model: Model,
    /// fp32 master weights and gradients, of all weights or of adapters.
    pub parameters: TrainedParameters,
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

/// A model of a role other than the policy.
#[derive(Debug)]
pub enum RoleModel {
    Trained(Box<TrainedModel>),
    Frozen(Box<FrozenModel>),
}

/// The models of a rank.
#[derive(Debug)]
pub struct Models {
    /// The model that is trained, published and exported.
    pub policy: TrainedModel,
    others: BTreeMap<ModelRole, RoleModel>,
}

/// A forward pass of a role that failed.
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
    /// A model at the start of its training, from this rank's fp32 shards of its weights.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(
        model: Model,
        ranks: &Rc<Ranks>,
        spec: OptimizerSpec,
        passes: Passes,
        masters: Vec<Tensor>,
    ) -> Result<Self, OptimizerError> {
        let passes = Passes { offload: spec.offload_weights, ..passes };
        let parameters = parameters(&model, ranks, passes, None, masters)?;
        let optimizer = Optimizer::new(Rc::clone(ranks), spec, parameters.trained())?;
        Ok(Self { model, parameters, optimizer })
    }

    /// As [`Self::new`], with adapters over a base: `masters` are the shards of what is trained.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn adapted(
        model: Model,
        ranks: &Rc<Ranks>,
        spec: OptimizerSpec,
        passes: Passes,
        adapters: (Lora, Base),
        masters: Vec<Tensor>,
    ) -> Result<Self, OptimizerError> {
        let parameters = parameters(&model, ranks, passes, Some(adapters), masters)?;
        let optimizer = Optimizer::new(Rc::clone(ranks), spec, parameters.trained())?;
        Ok(Self { model, parameters, optimizer })
    }

    /// A model that continues from its part of a checkpoint, with `adapters` if it has some.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn restored(
        model: Model,
        ranks: &Rc<Ranks>,
        spec: OptimizerSpec,
        passes: Passes,
        adapters: Option<(Lora, Base)>,
        restored: Restored,
    ) -> Result<Self, OptimizerError> {
        let (masters, moments) = restored
            .blocks
            .into_iter()
            .map(|[weights, exp_avg, exp_avg_sq]| (weights, [exp_avg, exp_avg_sq]))
            .unzip();
        let passes = Passes { offload: spec.offload_weights, ..passes };
        let parameters = parameters(&model, ranks, passes, adapters, masters)?;
        let optimizer = Optimizer::restored(Rc::clone(ranks), spec, moments, restored.optimizer)?;
        Ok(Self { model, parameters, optimizer })
    }

    /// The shape of what is trained.
    pub fn shape(&self) -> ModelShape {
        match &self.parameters {
            TrainedParameters::All(_) => model_shape(self.model.layout()),
            TrainedParameters::Adapters(adapted) => adapters_shape(adapted.lora(), adapted.base()),
        }
    }
}

/// The shape of adapters over a base.
pub fn adapters_shape(lora: &Lora, base: &Base) -> ModelShape {
    ModelShape { base_sha256: Some(base.sha256(lora.scale())), ..model_shape(lora.layout()) }
}

fn parameters(
    model: &Model,
    ranks: &Rc<Ranks>,
    passes: Passes,
    adapters: Option<(Lora, Base)>,
    masters: Vec<Tensor>,
) -> Result<TrainedParameters, ModelError> {
    let ranks = Rc::clone(ranks);
    Ok(match adapters {
        None => {
            let numels = model.layout().block_numels();
            let all = ShardedParameters::new(ranks, passes, &numels, masters)?;
            TrainedParameters::All(Box::new(all))
        }
        Some(adapters) => {
            let adapted = AdaptedParameters::new(ranks, passes.sharding, adapters, masters)?;
            TrainedParameters::Adapters(Box::new(adapted))
        }
    })
}

impl RoleModel {
    fn parts(&mut self) -> (&Model, &mut dyn Parameters) {
        match self {
            Self::Trained(trained) => (&trained.model, &mut trained.parameters),
            Self::Frozen(frozen) => (&frozen.model, &mut frozen.parameters),
        }
    }
}

impl Models {
    /// The policy and models of other roles.
    pub fn new(policy: TrainedModel, others: BTreeMap<ModelRole, RoleModel>) -> Self {
        Self { policy, others }
    }

    /// Models with an optimizer, the policy first.
    pub fn trained(&self) -> impl Iterator<Item = (ModelRole, &TrainedModel)> {
        let others = self.others.iter().filter_map(|(role, model)| match model {
            RoleModel::Trained(trained) => Some((*role, trained.as_ref())),
            RoleModel::Frozen(_) => None,
        });
        std::iter::once((ModelRole::Policy, &self.policy)).chain(others)
    }

    /// The model of a role, if it has an optimizer.
    pub fn trained_mut(&mut self, role: ModelRole) -> Option<&mut TrainedModel> {
        match self.others.get_mut(&role) {
            _ if role == ModelRole::Policy => Some(&mut self.policy),
            Some(RoleModel::Trained(trained)) => Some(trained),
            Some(RoleModel::Frozen(_)) | None => None,
        }
    }

    /// The shape of every trained model, which identifies its part of a checkpoint.
    pub fn shapes(&self) -> BTreeMap<ModelRole, ModelShape> {
        self.trained().map(|(role, trained)| (role, trained.shape())).collect()
    }

    /// Bytes of this rank's part of a checkpoint, by role.
    pub fn snapshot_bytes(&self) -> impl Iterator<Item = (ModelRole, usize)> {
        self.trained().map(|(role, TrainedModel { parameters, .. })| {
            let elements = parameters.shards().iter().map(|shard| shard.master.numel());
            // fp32: weights, and the two moments.
            (role, elements.fold(0, usize::saturating_add).saturating_mul(3 * 4))
        })
    }

    /// A copy of this rank's part of a checkpoint, in `memory` if the models are on a GPU.
    ///
    /// # Errors
    /// libtorch or CUDA cannot copy a tensor.
    pub fn snapshot(&self, memory: &mut SnapshotMemory) -> Result<Snapshot, CheckpointError> {
        let mut snapshot = Snapshot::default();
        for (role, TrainedModel { parameters, optimizer, .. }) in self.trained() {
            let blocks = parameters.shards().iter().zip(optimizer.moments());
            let blocks =
                blocks.map(|(shard, [exp_avg, exp_avg_sq])| [&shard.master, exp_avg, exp_avg_sq]);
            snapshot.add(role, optimizer.progress(), blocks, memory)?;
        }
        Ok(snapshot)
    }

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
        let (model, parameters) = self.parts(role)?;
        let logprobs = model.logprobs(parameters, packed, temperature);
        logprobs.map_err(|error| RoleError::Pass(role, error))
    }

    /// The `count` most likely tokens of the model of a role, of the policy's vocabulary. A
    /// collective.
    ///
    /// # Errors
    /// The role has no model, or the pass fails.
    pub fn top_tokens(
        &mut self,
        role: ModelRole,
        packed: &PackedTokens,
        temperature: f64,
        count: u32,
    ) -> Result<TopTokens, RoleError> {
        let of = (count.into(), self.policy.model.config().vocab_size);
        let (model, parameters) = self.parts(role)?;
        let tokens = model.top_tokens(parameters, packed, temperature, of);
        tokens.map_err(|error| RoleError::Pass(role, error))
    }

    fn parts(&mut self, role: ModelRole) -> Result<(&Model, &mut dyn Parameters), RoleError> {
        if role == ModelRole::Policy {
            return Ok((&self.policy.model, &mut self.policy.parameters));
        }
        self.others.get_mut(&role).map(RoleModel::parts).ok_or(RoleError::Missing(role))
    }
}
