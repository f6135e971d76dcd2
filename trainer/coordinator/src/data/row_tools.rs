//! Tools of rows: objects in OpenAI's format, or names of tools of the workflow.
//!
//! Keys keep their order in JSON text; in lists, [`Fields`] have sorted them.

use minijinja::value::Value as TemplateValue;
use serde::Deserialize;
use serde_json::Value;

use crate::data::error::DataError;
use crate::data::field;
use crate::data::location::RowLocation;
use crate::data::reader::Fields;
use crate::text::{Tool, Tools};

/// Field of a row with its tools.
#[derive(Clone, Debug)]
pub struct ToolsField {
    field: String,
    /// Tools of the workflow; empty if it has none.
    defined: Tools,
}

impl ToolsField {
    /// `defined` are the tools of the workflow, the only ones that rows may then have.
    pub fn new(field: &str, defined: &Tools) -> Self {
        Self { field: field.to_owned(), defined: defined.clone() }
    }

    /// Reads the tools of a row in their order. A row without the field has none, unless the
    /// workflow has tools: a misspelled field would remove them.
    pub fn read(&self, location: &RowLocation, fields: &Fields) -> Result<Tools, DataError> {
        let value = match field::find(fields, &self.field) {
            Some(value) => value,
            None if self.defined.is_empty() => &Value::Null,
            None => return Err(field::missing(location, &self.field, fields)),
        };
        self.tools(value).map_err(|problem| DataError::RowField {
            location: location.clone(),
            field: self.field.clone(),
            problem,
        })
    }

    fn tools(&self, value: &Value) -> Result<Tools, String> {
        let mut tools: Vec<Tool> = Vec::new();
        for (number, item) in (1..).zip(items(value)?) {
            let tool = self.tool(number, item)?;
            if tools.iter().any(|earlier| earlier.name() == tool.name()) {
                return Err(format!("has the tool `{}` twice: remove one of them", tool.name()));
            }
            tools.push(tool);
        }
        Ok(tools.into_iter().collect())
    }

    /// `number` counts from 1.
    fn tool(&self, number: usize, item: TemplateValue) -> Result<Tool, String> {
        if let Some(name) = item.as_str() {
            if self.defined.is_empty() {
                return Err(format!(
                    "has the name `{name}` as tool {number}: without rollout.workflow.tools, \
                     write the tool as an object with `type` and `function`"
                ));
            }
            return self.defined(name).cloned();
        }
        let tool = Tool::deserialize(item)
            .map_err(|error| format!("has an invalid tool {number}: {error}"))?;
        if !self.defined.is_empty() {
            self.defined(tool.name())?;
        }
        Ok(tool)
    }

    /// The tool of the workflow with this name.
    fn defined(&self, name: &str) -> Result<&Tool, String> {
        self.defined.iter().find(|tool| tool.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.defined.iter().map(Tool::name).collect();
            format!(
                "has the tool `{name}`, which rollout.workflow.tools does not execute (it has {}): \
                 add it there, or remove it from the row",
                names.join(", ")
            )
        })
    }
}

/// Items of a list or of its JSON text. Null has none.
fn items(value: &Value) -> Result<Vec<TemplateValue>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => Ok(items.iter().map(TemplateValue::from_serialize).collect()),
        Value::String(text) => {
            serde_json::from_str(text).map_err(|error| format!("is not a list in JSON: {error}"))
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err("is not a list".to_owned()),
    }
}

#[cfg(test)]
mod tests;
