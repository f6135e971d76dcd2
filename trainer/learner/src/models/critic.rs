//! Passes of the critic: a second model, or the value head of the policy.

use rljob_crds::algorithm::ModelRole;
use tch::Tensor;

use super::{Models, RoleError, RoleModel, TrainedModel};
use crate::model::{Head, PackedTokens, TokenLogprobs, TokenValues, ValueHead};

impl Models {
    /// The policy, and its value head if it has one.
    pub fn policy_and_value_head(&mut self) -> (&mut TrainedModel, Option<&mut TrainedModel>) {
        let head = match self.others.get_mut(&ModelRole::Critic) {
            Some(RoleModel::Trained(critic)) if critic.model.head() == Head::Value => {
                Some(critic.as_mut())
            }
            _ => None,
        };
        (&mut self.policy, head)
    }

    /// Whether the critic is a value head of the policy.
    pub fn has_value_head(&self) -> bool {
        self.trained().any(|(_, trained)| trained.model.head() == Head::Value)
    }

    /// Announces the passes of the policy, with its value head, until the next update.
    pub fn begin_minibatch(&mut self, passes: usize) {
        let (policy, head) = self.policy_and_value_head();
        for trained in std::iter::once(policy).chain(head) {
            trained.parameters.begin_minibatch(passes);
        }
    }

    /// Log-probabilities of the trained tokens under the policy, and the values of its value head,
    /// if it has one, without gradients. A collective.
    ///
    /// # Errors
    /// The pass fails.
    pub fn proximal(
        &mut self,
        packed: &PackedTokens,
        temperature: f64,
    ) -> Result<(TokenLogprobs, Option<TokenValues>), RoleError> {
        let (TrainedModel { model, parameters, .. }, head) = self.policy_and_value_head();
        let outputs = match head {
            None => model.logprobs(parameters, packed, temperature).map(|tokens| (tokens, None)),
            Some(head) => model
                .logprobs_and_values(parameters, &mut head.parameters, packed, temperature)
                .map(|(tokens, values)| (tokens, Some(values))),
        };
        outputs.map_err(|error| RoleError::Pass(ModelRole::Policy, error))
    }

    /// Values under the critic, without gradients. A collective.
    ///
    /// # Errors
    /// There is no critic, or the pass fails.
    pub fn values(&mut self, packed: &PackedTokens) -> Result<TokenValues, RoleError> {
        let values = if let (policy, Some(head)) = self.policy_and_value_head() {
            policy.model.head_values(&mut policy.parameters, &mut head.parameters, packed)
        } else {
            let (model, parameters) = self.parts(ModelRole::Critic)?;
            model.values(parameters, packed)
        };
        values.map_err(|error| RoleError::Pass(ModelRole::Critic, error))
    }

    /// Runs the critic forward and backward; under a value head, the policy runs forward only.
    /// `loss` gets the values `[N]` and returns the derivative of the total loss with respect to
    /// each. A collective.
    ///
    /// # Errors
    /// There is no critic, or the pass fails.
    pub fn values_forward_backward(
        &mut self,
        packed: &PackedTokens,
        loss: &mut dyn FnMut(&Tensor) -> Tensor,
    ) -> Result<(), RoleError> {
        let done = if let (policy, Some(head)) = self.policy_and_value_head() {
            let head = ValueHead { parameters: &mut head.parameters, loss };
            policy.model.head_forward_backward(&mut policy.parameters, head, packed)
        } else {
            let (model, parameters) = self.parts(ModelRole::Critic)?;
            model.values_forward_backward(parameters, packed, loss)
        };
        done.map_err(|error| RoleError::Pass(ModelRole::Critic, error))
    }
}
