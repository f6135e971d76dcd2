//! Rules of prompts: their templates, and the arguments of the chat template.

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use rljob_crds::data::{ConversationSpec, EvaluationDataset, PromptFormat, TrainDataset};
use serde_json::{Map, Value};

use super::common::exactly_one;
use crate::validate::Problem;

/// Instructions that a template may execute during validation.
const TEMPLATE_FUEL: u64 = 100_000;

/// Problem of `maxTokens` of rows whose completions are sampled.
pub(super) const NO_COMPLETION: &str =
    "has no effect, as rows have no completions: set maxPromptTokens";

/// Variables of a chat template that arguments cannot replace.
const STANDARD: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Fields of a dataset that make its prompts.
struct Prompts<'a> {
    path: &'a str,
    prompt: &'a str,
    conversation: Option<&'a ConversationSpec>,
    system: Option<&'a str>,
    tools: Option<&'a str>,
    completion: Option<&'a str>,
    chosen: Option<&'a str>,
    rejected: Option<&'a str>,
    arguments: &'a Map<String, Value>,
    format: PromptFormat,
}

/// Checks the prompts of training data at `path`.
pub(super) fn check_train(path: &str, dataset: &TrainDataset, problems: &mut Vec<Problem>) {
    let prompts = Prompts {
        path,
        prompt: &dataset.prompt,
        conversation: dataset.conversation.as_ref(),
        system: dataset.system.as_deref(),
        tools: dataset.tools.as_deref(),
        completion: dataset.completion.as_deref(),
        chosen: dataset.chosen.as_deref(),
        rejected: dataset.rejected.as_deref(),
        arguments: &dataset.chat_template_arguments,
        format: dataset.format,
    };
    prompts.check(problems);
}

/// Checks the prompts of evaluation data at `path`.
pub(super) fn check_evaluation(
    path: &str,
    dataset: &EvaluationDataset,
    problems: &mut Vec<Problem>,
) {
    let prompts = Prompts {
        path,
        prompt: &dataset.prompt,
        conversation: dataset.conversation.as_ref(),
        system: dataset.system.as_deref(),
        tools: dataset.tools.as_deref(),
        completion: dataset.completion.as_deref(),
        chosen: dataset.chosen.as_deref(),
        rejected: dataset.rejected.as_deref(),
        arguments: &dataset.chat_template_arguments,
        format: dataset.format,
    };
    prompts.check(problems);
}

impl Prompts<'_> {
    fn check(&self, problems: &mut Vec<Problem>) {
        let path = self.path;
        one_prompt(path, self.prompt, self.conversation, problems);
        if self.conversation.is_some() {
            self.check_conversation(problems);
        }
        let templates = [
            ("prompt", Some(self.prompt)),
            ("system", self.system),
            ("completion", self.completion),
            ("chosen", self.chosen),
            ("rejected", self.rejected),
        ];
        for (field, template) in templates {
            if let Some(template) = template {
                check_template(&format!("{path}.{field}"), template, problems);
            }
        }
        let chat_only = [
            ("conversation", self.conversation.is_some()),
            ("system", self.system.is_some()),
            ("tools", self.tools.is_some()),
            ("chatTemplateArguments", !self.arguments.is_empty()),
        ];
        for (field, _) in chat_only.iter().filter(|(_, is_set)| *is_set) {
            if self.format == PromptFormat::Text {
                let message = "belongs to the chat template; format Text has none";
                problems.push(Problem::new(format!("{path}.{field}"), message));
            }
        }
        for name in self.arguments.keys().filter(|name| STANDARD.contains(&name.as_str())) {
            let message = "is set by the run; remove it";
            problems.push(Problem::new(format!("{path}.chatTemplateArguments.{name}"), message));
        }
    }

    fn check_conversation(&self, problems: &mut Vec<Problem>) {
        let roles = "belongs to prompt: conversation has the messages of all roles";
        let tools = "belongs to prompt: set conversation.tools";
        for (field, is_set, message) in [
            ("system", self.system.is_some(), roles),
            ("completion", self.completion.is_some(), roles),
            ("tools", self.tools.is_some(), tools),
        ] {
            if is_set {
                problems.push(Problem::new(format!("{}.{field}", self.path), message));
            }
        }
    }
}

/// Checks that data have a prompt or a conversation.
pub(super) fn one_prompt(
    path: &str,
    prompt: &str,
    conversation: Option<&ConversationSpec>,
    problems: &mut Vec<Problem>,
) {
    let members = [("prompt", !prompt.is_empty()), ("conversation", conversation.is_some())];
    exactly_one(path, &members, problems);
}

/// Checks that a prompt template parses and names known filters, tests and functions. The values
/// of a row are not known here.
pub(super) fn check_template(path: &str, template: &str, problems: &mut Vec<Problem>) {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.set_unknown_method_callback(|_, _, _, _| Ok(minijinja::Value::UNDEFINED));
    let parsed = environment.template_from_named_str("prompt", template);
    let Err(error) = parsed.and_then(|prompt| prompt.render(())) else { return };
    let is_certain = matches!(
        error.kind(),
        ErrorKind::SyntaxError
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownTest
            | ErrorKind::UnknownFunction
    );
    if is_certain {
        problems.push(Problem::new(path, format!("is not a valid template: {error}")));
    }
}
