//! Main loop of a learner: follows the coordinator's instructions, the same on every rank at the
//! same time. The coordinator decides when to train, publish, checkpoint and exit.
//!
//! ```text
//!  rank 0: GET /v1/instructions ─▶ broadcast ─▶ all ranks: act ─▶ report ─▶ repeat
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::learner::{Instruction, StepReport, Transfer};
use rljob_protocol::metrics::WAIT_SECONDS;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;

use crate::checkpoint::{
    CheckpointError, CheckpointWriter, Destination, FILE_BYTES, SnapshotMemory,
};
use crate::coordinator_client::{ClientError, CoordinatorClient};
use crate::heartbeat;
use crate::memory::Phase;
use crate::model::ModelError;
use crate::publish::adapters::{AdapterConfig, StagedAdapters};
use crate::publish::broadcast::Broadcaster;
use crate::publish::export::Exporter;
use crate::publish::probes::Probes;
use crate::publish::writer::WeightsWriter;
use crate::publish::{PublishError, Staged};
use crate::trainer::{StepError, Trainer};

/// Delay before the next request after [`Instruction::Wait`].
const PAUSE: Duration = Duration::from_millis(100);

/// A fatal error of a learner.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// The attempt was superseded, or the coordinator is unavailable.
    #[error(transparent)]
    Coordinator(#[from] ClientError),
    #[error("step {step} failed")]
    Step { step: u32, source: StepError },
    #[error("the validation after {step} steps failed")]
    Validation { step: u32, source: StepError },
    #[error("the inference of the batch of step {step} failed")]
    Inference { step: u32, source: StepError },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("failed to broadcast the coordinator's instruction")]
    Collective(#[from] rljob_collective::CollectiveError),
    /// An instruction that contradicts the state of this learner.
    #[error("failed to follow the coordinator's instruction: {0}")]
    Instruction(String),
}

/// One rank of the learner group.
#[derive(Debug)]
pub struct Learner {
    pub trainer: Trainer,
    /// Folder of the model, whose configuration is copied to published folders.
    pub model_directory: PathBuf,
    pub client: CoordinatorClient,
    pub steps_done: u32,
    /// Time without an instruction since the last step.
    pub waited: Duration,
    pub run_store: RunStore,
    pub run_directory: PathBuf,
    pub checkpoints: CheckpointWriter,
    pub snapshot_memory: SnapshotMemory,
    pub exports: Exporter,
    pub weights: WeightsWriter,
    pub broadcaster: Broadcaster,
    pub probes: Probes,
}

impl Learner {
    /// Follows instructions until [`Instruction::Exit`].
    ///
    /// # Errors
    /// An instruction, or a checkpoint, an export or a publication in the background, failed.
    pub fn run(mut self) -> Result<(), LearnerError> {
        loop {
            self.checkpoints.check()?;
            self.exports.check()?;
            self.weights.check()?;
            let asked = Instant::now();
            let instruction = self.next_instruction()?;
            self.trainer.spans.end("wait for an instruction", asked);
            heartbeat::advance();
            let (name, began) = (activity(&instruction), Instant::now());
            tracing::debug!(?instruction, "received an instruction");
            match instruction {
                Instruction::Wait => {
                    std::thread::sleep(PAUSE);
                    self.waited += asked.elapsed();
                }
                Instruction::Train { step, total_steps } => {
                    // Schedules of learning rates depend on it.
                    let training = &mut self.trainer.spec.training;
                    training.steps = total_steps.unwrap_or(training.steps);
                    self.train(step)?;
                }
                Instruction::Validate { step } => self.validate(step)?,
                Instruction::PublishToDisk { version, path } => {
                    self.publish_to_disk(version, path)?;
                }
                Instruction::PublishByBroadcast { version, transfers } => {
                    self.publish_by_broadcast(version, transfers)?;
                }
                Instruction::Checkpoint { version, path } => self.checkpoint(version, &path)?,
                Instruction::Export { version, path } => self.export(version, path)?,
                Instruction::Exit => break,
            }
            if let Some(name) = name {
                self.trainer.spans.end(name, began);
            }
        }
        self.checkpoints.wait()?;
        self.exports.wait()?;
        self.weights.wait()?;
        self.broadcaster.finish();
        Ok(())
    }

    fn next_instruction(&self) -> Result<Instruction, LearnerError> {
        let json = if self.trainer.ranks.rank() == 0 {
            serde_json::to_vec(&self.client.instruction(self.steps_done)?)
        } else {
            Ok(Vec::new())
        };
        let not_json = |error: serde_json::Error| LearnerError::Instruction(error.to_string());
        serde_json::from_slice(&self.trainer.ranks.broadcast(json.map_err(not_json)?)?)
            .map_err(not_json)
    }

    fn train(&mut self, step: u32) -> Result<(), LearnerError> {
        if step != self.steps_done + 1 {
            return Err(LearnerError::Instruction(format!(
                "train step {step} after {} steps",
                self.steps_done
            )));
        }
        rljob_logging::set_step(step);
        let fetched = Instant::now();
        let batch =
            self.client.batch(step, self.trainer.ranks.rank(), self.trainer.ranks.world_size())?;
        self.trainer.spans.end("fetch the batch", fetched);
        let began = Instant::now();
        let mut metrics = self
            .trainer
            .guarded(|trainer| trainer.step(step, &batch))
            .map_err(|source| LearnerError::Step { step, source })?;
        self.trainer.spans.end(format!("train step {step}"), began);
        self.steps_done = step;
        let waited = std::mem::take(&mut self.waited).as_secs_f64();
        metrics.scalars.set(WAIT_SECONDS, waited);
        if self.trainer.ranks.rank() == 0 {
            metrics.attempt = self.client.attempt();
            let spans = self.trainer.spans.take(Instant::now());
            self.client.report_step(&StepReport { attempt: metrics.attempt, metrics, spans })?;
        }
        Ok(())
    }

    fn validate(&mut self, step: u32) -> Result<(), LearnerError> {
        if step != self.steps_done {
            return Err(LearnerError::Instruction(format!(
                "validate after {step} steps, but {} are done",
                self.steps_done
            )));
        }
        let data = self.client.validation_data(
            step,
            self.trainer.ranks.rank(),
            self.trainer.ranks.world_size(),
        )?;
        let mut report = self
            .trainer
            .guarded(|trainer| trainer.validate(step, &data))
            .map_err(|source| LearnerError::Validation { step, source })?;
        if self.trainer.ranks.rank() == 0 {
            report.attempt = self.client.attempt();
            self.client.report_validation(step, &report)?;
        }
        Ok(())
    }

    fn publish_to_disk(&mut self, version: Version, path: PathBuf) -> Result<(), LearnerError> {
        self.check_step(version)?;
        let writes = self.trainer.ranks.rank() == 0;
        if self.weights.is_newest(version) {
            return if writes { Ok(self.weights.repeat_report(version, path)?) } else { Ok(()) };
        }
        // At most one publication holds a copy of the weights.
        self.weights.wait()?;
        let staged = self.stage_with_probes(&[0], version)?;
        Ok(self.weights.begin(version, path, staged)?)
    }

    fn export(&mut self, version: Version, path: PathBuf) -> Result<(), LearnerError> {
        self.check_step(version)?;
        let writes = self.trainer.ranks.rank() == 0;
        if self.exports.is_newest(version, &path) {
            return if writes { Ok(self.exports.repeat_report(version, &path)?) } else { Ok(()) };
        }
        // At most one export holds a copy of the weights.
        self.exports.wait()?;
        let adapters = self.stage_adapters(&[0])?;
        let staged = self.stage(&[0])?.map(|staged| staged.with_adapters(adapters));
        Ok(self.exports.begin(version, path, staged)?)
    }

    /// A copy of the adapters on the ranks `keepers`. A collective of their replicas.
    fn stage_adapters(&mut self, keepers: &[u32]) -> Result<Option<StagedAdapters>, PublishError> {
        let Some(keep) = self.trainer.ranks.mesh().keeps(keepers) else { return Ok(None) };
        let config = AdapterConfig::of(&self.trainer.spec, &self.model_directory);
        self.trainer.phase = Phase::Publication;
        self.trainer.guarded(|trainer| {
            let parameters = &mut trainer.models.policy.parameters;
            Ok(StagedAdapters::gather(parameters, config, keep)?)
        })
    }

    fn publish_by_broadcast(
        &mut self,
        version: Version,
        transfers: Vec<Transfer>,
    ) -> Result<(), LearnerError> {
        self.check_step(version)?;
        let senders: Vec<u32> = transfers.iter().map(|transfer| transfer.sender).collect();
        let mine: Vec<Transfer> = transfers
            .into_iter()
            .filter(|transfer| transfer.sender == self.trainer.ranks.rank())
            .collect();
        self.broadcaster.give_up_replaced(&mine);
        match self.stage_with_probes(&senders, version)? {
            Some(staged) => Ok(self.broadcaster.begin(version, mine, staged)?),
            None => Ok(()),
        }
    }

    fn checkpoint(&mut self, version: Version, path: &Path) -> Result<(), LearnerError> {
        self.check_step(version)?;
        if !self.trainer.ranks.is_of_first_replica() {
            return Ok(());
        }
        if self.checkpoints.is_newest(version) {
            return Ok(self.checkpoints.repeat_report(path, version)?);
        }
        // A restart from this checkpoint does not repeat an export of an earlier step.
        self.exports.wait()?;
        self.checkpoints.wait()?; // it reads the memory of its snapshot
        let ranks = &self.trainer.ranks;
        let started = Instant::now();
        let snapshot = self.trainer.snapshot(&mut self.snapshot_memory)?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(%version, seconds, "copied this rank's part of a checkpoint");
        let (folder, bucket) = match &self.run_store {
            RunStore::Folder(_) => (path.to_owned(), None),
            RunStore::Bucket(bucket) => (
                self.run_directory.join(CHECKPOINTS_DIR).join(version.to_string()),
                Some(bucket.clone()),
            ),
        };
        let destination = Destination {
            path: folder,
            bucket,
            version,
            rank: ranks.mesh().shard(),
            world_size: ranks.mesh().shards(),
            file_bytes: FILE_BYTES,
        };
        Ok(self.checkpoints.begin(destination, path.to_owned(), snapshot)?)
    }

    /// A copy of the weights on the ranks `keepers`. A collective of their replicas.
    fn stage(&mut self, keepers: &[u32]) -> Result<Option<Staged>, PublishError> {
        let Some(keep) = self.trainer.ranks.mesh().keeps(keepers) else { return Ok(None) };
        self.trainer.phase = Phase::Publication;
        self.trainer.guarded(|trainer| {
            let policy = &mut trainer.models.policy;
            Staged::gather(&mut policy.parameters, policy.model.layout(), keep)
        })
    }

    /// As [`Self::stage`], with elements by which engines are checked.
    fn stage_with_probes(
        &mut self,
        keepers: &[u32],
        version: Version,
    ) -> Result<Option<Staged>, PublishError> {
        let Some(staged) = self.stage(keepers)? else { return Ok(None) };
        let config = self.trainer.models.policy.model.config();
        let probes = self.probes.choose(&staged.tensors(), config, version.step as usize);
        Ok(Some(staged.with_probes(probes.map_err(ModelError::from)?)))
    }

    fn check_step(&self, version: Version) -> Result<(), LearnerError> {
        if version.step == self.steps_done {
            return Ok(());
        }
        Err(LearnerError::Instruction(format!(
            "{version} was requested after {} steps",
            self.steps_done
        )))
    }
}

/// Name of what follows an instruction, in traces. Training has its own spans.
fn activity(instruction: &Instruction) -> Option<&'static str> {
    match instruction {
        Instruction::Validate { .. } => Some("validation"),
        Instruction::PublishToDisk { .. } => Some("copy weights for engines"),
        Instruction::PublishByBroadcast { .. } => Some("stage weights for engines"),
        Instruction::Checkpoint { .. } => Some("copy a checkpoint"),
        Instruction::Export { .. } => Some("copy an export"),
        Instruction::Wait | Instruction::Train { .. } | Instruction::Exit => None,
    }
}
