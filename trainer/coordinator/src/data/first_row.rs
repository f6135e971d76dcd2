//! First rows of data, for the check of reward functions without a run. Needs no tokenizer, and
//! applies no filter.

use std::path::Path;
use std::sync::Arc;

use rljob_crds::RunConfig;
use rljob_crds::algorithm::Capabilities;
use rljob_crds::data::ConversationSpec;

use super::conversation::Use;
use super::error::DataError;
use super::files::{self, FileSelector};
use super::location::RowLocation;
use super::reader::{Fields, ReadLimits, RowReader};
use super::templates::{KeptFields, Templates};

/// What a reward is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRow {
    pub location: RowLocation,
    /// Rendered prompt without the chat template, or the messages before the completion.
    pub prompt: String,
    pub answer: Option<String>,
    /// Whether the answer is the JSON text of a list or an object.
    pub has_structured_answer: bool,
    /// Fields that rewards receive.
    pub reward_fields: Option<Arc<Fields>>,
    /// Names of the rewards that score its completions; all if empty.
    pub rewards: Vec<String>,
    /// Field of its source in the spec.
    pub field: String,
}

/// Settings of a source that a row depends on.
struct Source<'a> {
    field: &'a str,
    path: Option<&'a str>,
    selector: FileSelector<'a>,
    prompt: &'a str,
    answer: Option<&'a str>,
    conversation: Option<&'a ConversationSpec>,
    rewards: &'a [String],
    reward_fields: &'a [String],
}

/// The first row of each source whose completions are scored. Sources that are not on this machine
/// are left out: another check names them.
///
/// # Errors
/// What would fail a run that opens the data.
pub fn first_rows(config: &RunConfig) -> Result<Vec<FirstRow>, DataError> {
    let has_rollouts = config.spec.algorithm.capabilities().is_some_and(Capabilities::has_rollouts);
    let train = if has_rollouts { config.train_dataset().parts() } else { Vec::new() };
    let suites = config.suites();
    let of_training = train.iter().map(|part| Source {
        field: &part.field,
        path: part.data.path.as_deref(),
        selector: FileSelector {
            split: part.data.split.as_deref(),
            default_split: "train",
            subset: part.data.subset.as_deref(),
        },
        prompt: &part.data.prompt,
        answer: part.data.answer.as_deref(),
        conversation: part.data.conversation.as_ref(),
        rewards: &part.data.rewards,
        reward_fields: &part.data.reward_fields,
    });
    let scored = suites.iter().filter(|suite| suite.data.answer.is_some());
    let of_evaluation = scored.map(|suite| Source {
        field: &suite.field,
        path: suite.data.path.as_deref(),
        selector: FileSelector {
            split: suite.data.split.as_deref(),
            default_split: "test",
            subset: suite.data.subset.as_deref(),
        },
        prompt: &suite.data.prompt,
        answer: suite.data.answer.as_deref(),
        conversation: suite.data.conversation.as_ref(),
        rewards: &suite.data.rewards,
        reward_fields: &suite.data.reward_fields,
    });
    let sources = of_training.chain(of_evaluation);
    sources.filter_map(|source| source.first_row().transpose()).collect()
}

impl Source<'_> {
    fn first_row(&self) -> Result<Option<FirstRow>, DataError> {
        let Some(path) = self.path.map(Path::new).filter(|path| path.exists()) else {
            return Ok(None);
        };
        let files = files::select(path, self.selector)?.paths;
        let Some(row) = RowReader::new(files, ReadLimits::default()).next() else {
            return Ok(None);
        };
        let (location, fields) = row?;
        let templates = Templates::new(self.prompt, None, None, self.answer, &KeptFields::None)?
            .with_conversation(self.conversation, Use::Prompt)
            .with_reward_fields(self.reward_fields);
        let row = templates.row(location, 0, &fields)?;
        Ok(Some(FirstRow {
            location: row.location,
            prompt: row.prompt,
            answer: row.answer,
            has_structured_answer: row.has_structured_answer,
            reward_fields: row.reward_fields,
            rewards: self.rewards.to_vec(),
            field: self.field.to_owned(),
        }))
    }
}
