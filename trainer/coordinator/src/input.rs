//! Input of a run: tokenizer, data, verifier and model limits, read and validated at start. Invalid
//! input fails the run without a restart.

mod epochs;
mod error;
pub mod hub;
mod model;
mod workflow_checks;

use rljob_crds::algorithm::{Capabilities, DataKind};
use rljob_crds::data::Suite;
use rljob_crds::{RLJobSpec, RunConfig};
use rljob_storage::model_folder::ModelFolderWait;

use crate::data::{DataError, Dataset, KeptFields};
use crate::engines::FixedFleets;
use crate::persistence::data_identity::{DataIdentity, DataIdentityError};
use crate::reward::{Rewards, Runner};
use crate::teacher::Teacher;
use crate::text::{TextTokenizer, ToolCallFormat};
use crate::workflow::{Lengths, ToolSet, Workflow};
use model::{open_model, probes};
use workflow_checks::{check_workflow, tool_call_format};

pub use epochs::{check_epochs, steps_of_epochs};
pub use error::InputError;
pub use model::{check_model, cost_model};

/// A suite with its rows.
pub struct SuiteData {
    pub suite: Suite,
    pub data: Dataset,
}

impl SuiteData {
    /// Name of the data in files and messages.
    pub fn name(&self) -> &str {
        self.suite.name.as_deref().unwrap_or("evaluation")
    }
}

/// A run's input, checked.
pub struct Input {
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// Training data; none of an evaluation.
    pub train: Option<Dataset>,
    /// All rows of the training data that fit, before those without usable answers are dropped.
    pub train_identity: Option<DataIdentity>,
    /// Evaluation data by suite.
    pub evaluation: Vec<SuiteData>,
    /// The reward; none for `sft` without a reward.
    pub rewards: Option<Rewards>,
    /// The teacher, if a server or engines of the job serve it.
    pub teacher: Option<Teacher>,
    /// Turns of a sample.
    pub workflow: Workflow,
    /// Format of the model's tool calls, if it is known and needed.
    pub tool_call_format: Option<ToolCallFormat>,
    /// Token ids are below this.
    pub vocabulary: i64,
    /// Longest sequence in tokens.
    pub context: u32,
}

impl Input {
    /// Reads and checks everything. Blocks.
    pub fn open(
        config: &RunConfig,
        runner: &Runner,
        engines: &FixedFleets,
    ) -> Result<Self, InputError> {
        let spec = &config.spec;
        let (tokenizer, model) = open_model(config)?;
        let rewards = (!spec.rewards.is_empty())
            .then(|| Rewards::new(&spec.rewards, runner, engines.reward.as_ref()))
            .transpose()?;
        let teacher = open_teacher(config, &tokenizer, model.vocab_size, engines)?;
        let workflow = Workflow::new(&spec.rollout, &config.uid, runner)?;
        let tool_call_format = tool_call_format(&workflow, &tokenizer)?;
        let tools = workflow.tools().map(ToolSet::described).unwrap_or_default();
        let with_tools = tokenizer.with_tools(tools);
        let kept = workflow.kept_fields()?;
        let mut train = open_train(config, &with_tools, &kept)?;
        let open = |suite: Suite| {
            let data = Dataset::open_evaluation(&suite, &with_tools, &kept)?;
            Ok::<_, InputError>(SuiteData { suite, data })
        };
        let mut evaluation: Vec<SuiteData> =
            config.suites().into_iter().map(open).collect::<Result<_, _>>()?;
        for data in train.iter().chain(evaluation.iter().map(|own| &own.data)) {
            data.check_lengths(model.max_position_embeddings)?;
            check_workflow(spec, &workflow, data, &tokenizer)?;
        }
        let train_identity = train
            .as_ref()
            .map(|train| DataIdentity::new(spec, train.len(), train.fingerprint()))
            .transpose()
            .map_err(DataIdentityError::from)?;
        let share = spec.dataset.max_unusable_share;
        if let Some(rewards) = &rewards {
            train
                .as_mut()
                .filter(|_| spec.algorithm.has_rollouts())
                .map_or(Ok(()), |train| train.drop_unusable(rewards, share))?;
            for own in evaluation.iter_mut().filter(|own| own.suite.data.answer.is_some()) {
                own.data.drop_unusable(rewards, share)?;
            }
        }
        Ok(Self {
            tokenizer,
            train,
            train_identity,
            evaluation,
            rewards,
            teacher,
            workflow,
            tool_call_format,
            vocabulary: model.vocab_size,
            context: model.max_position_embeddings,
        })
    }

    /// Training data of a run that trains.
    ///
    /// # Errors
    /// The run has none.
    pub fn train(&self) -> Result<&Dataset, InputError> {
        self.train.as_ref().ok_or(InputError::NoTrainingData)
    }

    /// The data of training and of all suites.
    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.train.iter().chain(self.evaluation.iter().map(|own| &own.data))
    }

    /// Maximum length of the first completion after a prompt of this number of tokens.
    pub fn room(
        &self,
        dataset: &'static str,
        row: u64,
        prompt: usize,
        lengths: Lengths,
    ) -> Result<u32, InputError> {
        match (prompt, lengths.room(prompt, 0)) {
            (0, _) => Err(InputError::EmptyPrompt { dataset, row }),
            (_, 0) => {
                Err(InputError::TooLong { dataset, row, tokens: prompt, context: self.context })
            }
            (_, room) => Ok(room),
        }
    }

    /// Lengths of a sample whose completions have at most `max_new_tokens` tokens.
    pub fn lengths(&self, spec: &RLJobSpec, max_new_tokens: u32) -> Lengths {
        Lengths::new(spec.rollout.workflow.as_ref(), self.context, max_new_tokens)
    }
}

/// The teacher, if a server or engines of the job serve it.
fn open_teacher(
    config: &RunConfig,
    tokenizer: &TextTokenizer,
    vocabulary: i64,
    engines: &FixedFleets,
) -> Result<Option<Teacher>, InputError> {
    let algorithm = config.spec.algorithm.capabilities();
    let Some(spec) = algorithm.and_then(Capabilities::served_teacher) else { return Ok(None) };
    let probes = probes(config, tokenizer)?;
    Ok(Teacher::new(spec, engines.teacher.as_ref(), vocabulary, probes)?)
}

/// Opens the training data, which an evaluation lacks.
fn open_train(
    config: &RunConfig,
    tokenizer: &TextTokenizer,
    kept: &KeptFields,
) -> Result<Option<Dataset>, DataError> {
    let (train, spec) = (config.train_dataset(), &config.spec);
    if train.is_absent() {
        return Ok(None);
    }
    let open = match spec.algorithm.capabilities().map(Capabilities::data) {
        Some(DataKind::Demonstrations) => Dataset::open_demonstrations,
        _ => Dataset::open_train,
    };
    open(&train, tokenizer, spec.training.seed, kept).map(Some)
}

/// Waits for the export of another job, if the model is one.
pub async fn wait_for_model(config: &RunConfig) -> Result<(), InputError> {
    if config.spec.model.rljob.is_none() {
        return Ok(());
    }
    let mut wait = ModelFolderWait::new(&config.model_directory, &config.spec.model);
    while !wait.is_complete()? {
        tokio::time::sleep(ModelFolderWait::INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
