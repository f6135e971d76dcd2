//! Tools that a chat template describes, in the shape of OpenAI's API. The order of their fields is
//! kept, since it is part of the prompt.

use std::sync::Arc;

use minijinja::value::Value;
use serde::{Deserialize, Serialize};

/// Tools of a prompt. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools(Arc<[Tool]>);

/// A tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    kind: Kind,
    function: Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Function {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
}

/// A tool in the shape of OpenAI's API of responses: the fields of the function are its own.
#[derive(Clone, Debug, Deserialize)]
pub struct FlatTool {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(flatten)]
    function: Function,
}

impl From<FlatTool> for Tool {
    fn from(tool: FlatTool) -> Self {
        let FlatTool { kind, function } = tool;
        Self { kind, function }
    }
}

impl Tool {
    /// `parameters` is the JSON schema of the arguments.
    pub fn new(name: &str, description: &str, parameters: &impl Serialize) -> Self {
        let function = Function {
            name: name.to_owned(),
            description: Some(description.to_owned()),
            parameters: Some(Value::from_serialize(parameters)),
        };
        Self { kind: Kind::Function, function }
    }

    pub fn name(&self) -> &str {
        &self.function.name
    }
}

impl Tools {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// Names in the order of the tools.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// Value of the variable `tools`; none without tools, as in transformers.
    pub(crate) fn template_value(&self) -> Value {
        if self.is_empty() { Value::from(()) } else { Value::from_serialize(&self.0[..]) }
    }
}

impl FromIterator<Tool> for Tools {
    fn from_iter<I: IntoIterator<Item = Tool>>(tools: I) -> Self {
        Self(tools.into_iter().collect())
    }
}
