//! Rules of the workflow of rollouts.

use std::collections::BTreeSet;

use rljob_crds::data::{DatasetSpec, PromptFormat};
use rljob_crds::workflow::{EnvironmentWorkflow, ToolSpec, ToolsWorkflow, WorkflowSpec};
use serde_json::Value;

use super::common::check_union;
use super::prompts::check_template;
use crate::validate::Problem;

const PATH: &str = "spec.rollout.workflow";

pub(super) fn check_workflow(
    workflow: &WorkflowSpec,
    dataset: &DatasetSpec,
    problems: &mut Vec<Problem>,
) {
    check_union(PATH, workflow, problems);
    if let Some(multi_turn) = &workflow.multi_turn {
        check_template(&format!("{PATH}.multiTurn.feedback"), &multi_turn.feedback, problems);
    }
    if let Some(environment) = &workflow.environment {
        check_environment(environment, problems);
    }
    if let Some(tools) = &workflow.tools {
        check_tools(tools, problems);
        check_formats(dataset, problems);
    }
}

fn check_environment(environment: &EnvironmentWorkflow, problems: &mut Vec<Problem>) {
    let path = format!("{PATH}.environment");
    check_union(&path, environment, problems);
    if environment.url.is_none() && environment.token_secret_ref.is_some() {
        let message = "belongs to url: programs have no token";
        problems.push(Problem::new(format!("{path}.tokenSecretRef"), message));
    }
}

fn check_tools(workflow: &ToolsWorkflow, problems: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    for (index, tool) in workflow.tools.iter().enumerate() {
        let path = format!("{PATH}.tools.tools[{index}]");
        if !names.insert(tool.name.as_str()) {
            let message = format!("`{}` is the name of an earlier tool", tool.name);
            problems.push(Problem::new(format!("{path}.name"), message));
        }
        check_union(&path, tool, problems);
        if let Some((part, message)) = schema_error(tool) {
            problems.push(Problem::new(format!("{path}.parameters.{part}"), message));
        }
    }
}

/// What is wrong with the schema of the arguments, and where. Its type is a rule of the API.
fn schema_error(tool: &ToolSpec) -> Option<(String, String)> {
    let properties = match tool.parameters.get("properties") {
        None => return None,
        Some(Value::Object(properties)) => properties,
        Some(_) => {
            let message = "must be an object with a JSON schema for each argument".to_owned();
            return Some(("properties".to_owned(), message));
        }
    };
    let is_schema = |schema: &Value| schema.is_object() || schema.is_boolean();
    if let Some((name, _)) = properties.iter().find(|(_, schema)| !is_schema(schema)) {
        let message = "must be a JSON schema, an object".to_owned();
        return Some((format!("properties.{name}"), message));
    }
    let required = tool.parameters.get("required")?;
    let is_property =
        |name: &Value| name.as_str().is_some_and(|name| properties.contains_key(name));
    let is_valid = required.as_array().is_some_and(|names| names.iter().all(is_property));
    let message = || "must be a list of names of `properties`".to_owned();
    (!is_valid).then(|| ("required".to_owned(), message()))
}

/// Tools are described by the chat template.
fn check_formats(dataset: &DatasetSpec, problems: &mut Vec<Problem>) {
    let train = Some(&dataset.train).filter(|train| !train.is_absent());
    let train = train.map(|train| ("spec.dataset.train".to_owned(), train.format));
    let suites = dataset.suites().into_iter().map(|suite| (suite.field, suite.data.format));
    for (field, _) in
        train.into_iter().chain(suites).filter(|(_, format)| *format == PromptFormat::Text)
    {
        let message =
            "must be Chat: the chat template describes the tools of rollout.workflow.tools";
        problems.push(Problem::new(format!("{field}.format"), message));
    }
}
