//! Main loop of a learner of a group of `trainer.groups`: a frozen model infers the batches that
//! the trainer trains on later.
//!
//! ```text
//!  rank 0: GET instructions ──▶ broadcast ──▶ every rank: fetch its part, forward passes,
//!                                             POST log-probabilities ──▶ wait for all ──▶ repeat
//! ```
//! It keeps no state between batches: after a restart the coordinator asks for what is missing.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rljob_crds::RLJobSpec;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::group::{GroupInstruction, RankLogprobs};
use rljob_protocol::prompts::Prompts;
use tch::Kind;

use crate::coordinator_client::CoordinatorClient;
use crate::heartbeat;
use crate::learner::LearnerError;
use crate::memory::Phase;
use crate::memory::out_of_memory::guard;
use crate::models::FrozenModel;
use crate::ranks::Ranks;
use crate::step::micro_batch::{check_place, packed_tokens};
use crate::trainer::{StepError, temperature};

/// Delay before the next request after [`GroupInstruction::Wait`].
const PAUSE: Duration = Duration::from_millis(100);

/// One rank of a group.
#[derive(Debug)]
pub struct GroupLearner {
    group: String,
    ranks: Rc<Ranks>,
    model: FrozenModel,
    client: CoordinatorClient,
    spec: RLJobSpec,
    /// What the rank does, for errors about memory.
    phase: Phase,
}

impl GroupLearner {
    /// A rank with its part of the model. `spec` is that which the group sees.
    pub fn new(
        group: String,
        ranks: Rc<Ranks>,
        model: FrozenModel,
        client: CoordinatorClient,
        spec: RLJobSpec,
    ) -> Self {
        Self { group, ranks, model, client, spec, phase: Phase::default() }
    }

    /// Follows instructions until [`GroupInstruction::Exit`].
    ///
    /// # Errors
    /// The coordinator is unavailable, the attempt was superseded, or a pass failed.
    pub fn run(mut self) -> Result<(), LearnerError> {
        loop {
            let instruction = self.next_instruction()?;
            heartbeat::advance();
            match instruction {
                GroupInstruction::Wait => std::thread::sleep(PAUSE),
                GroupInstruction::Infer { step } => self.infer(step)?,
                GroupInstruction::Exit => return Ok(()),
            }
        }
    }

    fn next_instruction(&self) -> Result<GroupInstruction, LearnerError> {
        let json = if self.ranks.rank() == 0 {
            serde_json::to_vec(&self.client.group_instruction(&self.group)?)
        } else {
            Ok(Vec::new())
        };
        let not_json = |error: serde_json::Error| LearnerError::Instruction(error.to_string());
        serde_json::from_slice(&self.ranks.broadcast(json.map_err(not_json)?)?).map_err(not_json)
    }

    fn infer(&mut self, step: u32) -> Result<(), LearnerError> {
        rljob_logging::set_step(step);
        let (rank, world_size) = (self.ranks.rank(), self.ranks.world_size());
        let batch = self.client.group_batch(&self.group, step, rank, world_size)?;
        let settings = |learner: &Self| (learner.phase, learner.spec.clone());
        let found = guard(self, settings, |learner| learner.logprobs(step, &batch))
            .map_err(|source| LearnerError::Inference { step, source })?;
        self.client.send_logprobs(&self.group, step, (rank, world_size), &found)?;
        // Rank 0 asks again once the parts of all ranks have arrived.
        self.ranks.sum([0.0])?;
        tracing::debug!(step, seconds = found.seconds, "inferred a batch");
        Ok(())
    }

    /// Log-probabilities of the trained tokens of a rank's part. A collective.
    fn logprobs(&mut self, step: u32, batch: &RankBatch) -> Result<RankLogprobs, StepError> {
        let began = Instant::now();
        check_place(&batch.header, step, self.ranks.rank(), self.ranks.world_size())?;
        let device = self.ranks.device();
        let FrozenModel { model, parameters } = &mut self.model;
        let prompts = Prompts::of_gpus(u32::from(device.is_cuda()));
        self.phase = Phase::Batch;
        let micro_batches = packed_tokens(batch, prompts, model.config().vocab_size)?;
        let mut logprobs = Vec::new();
        for packed in micro_batches {
            heartbeat::advance_after(device)?;
            self.phase = Phase::Frozen { tokens: packed.num_tokens() };
            let packed = packed.to_device(device, self.spec.training.deterministic);
            let tokens = model.logprobs(parameters, &packed, temperature(&self.spec))?;
            let own: Vec<f32> = tokens
                .logprobs_N
                .to_kind(Kind::Float)
                .try_into()
                .map_err(|error: tch::TchError| StepError::Model(error.into()))?;
            logprobs.extend(own);
        }
        Ok(RankLogprobs { seconds: began.elapsed().as_secs_f64(), logprobs })
    }
}
