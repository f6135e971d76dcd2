//! Test cases of a dataset row, in the formats of public datasets.
//!
//! | Dataset | JSON | A test |
//! |---|---|---|
//! | APPS, TACO, CodeContests | `{"inputs": [text, …], "outputs": [text, …]}` | its streams |
//! | APPS, LiveCodeBench | the same with `"fn_name": name` | call and result of a function |
//! | MBPP | `["assert f(1) == 2", …]` | a statement in the language of the program |
//! | HumanEval and others | `{"asserts": [text, …], "setup": text}` | the same, after the setup |

use serde::Deserialize;
use serde_json::Value;

/// Most tests of a program.
const MAX_TESTS: usize = 10_000;

/// Tests of a program: 1 to [`MAX_TESTS`].
#[derive(Clone, Debug, PartialEq)]
pub enum Tests {
    /// Standard input and expected standard output.
    Streams(Vec<(String, String)>),
    /// Arguments, as a JSON list, and expected result of a function.
    Calls { function: String, cases: Vec<(Value, Value)> },
    /// Statements that run after the program and `setup`.
    Asserts { setup: String, statements: Vec<String> },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Row {
    Statements(Vec<String>),
    Asserts {
        asserts: Vec<String>,
        #[serde(default)]
        setup: String,
    },
    Pairs {
        inputs: Vec<Value>,
        outputs: Vec<Value>,
        fn_name: Option<String>,
    },
}

impl Tests {
    /// Parses the tests of a row. The error is the reason.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let row = serde_json::from_str(text).map_err(|_| {
            "tests are JSON: a list of assert statements, {\"asserts\", \"setup\"?} or \
             {\"inputs\", \"outputs\", \"fn_name\"?}"
        })?;
        let tests = match row {
            Row::Statements(statements) => Self::Asserts { setup: String::new(), statements },
            Row::Asserts { asserts, setup } => Self::Asserts { setup, statements: asserts },
            Row::Pairs { inputs, outputs, .. } if inputs.len() != outputs.len() => {
                return Err("inputs and outputs differ in number");
            }
            Row::Pairs { inputs, outputs, fn_name: Some(function) } => {
                let is_name = function.chars().all(|char| char.is_alphanumeric() || char == '_');
                if function.is_empty() || !is_name {
                    return Err("fn_name is not the name of a function");
                }
                let inputs = inputs.into_iter().map(arguments).collect::<Result<Vec<_>, _>>()?;
                let cases = inputs.into_iter().zip(outputs.into_iter().map(expected)).collect();
                Self::Calls { function, cases }
            }
            Row::Pairs { inputs, outputs, fn_name: None } => {
                let inputs = inputs.iter().map(stream).collect::<Result<Vec<_>, _>>()?;
                let outputs = outputs.iter().map(stream).collect::<Result<Vec<_>, _>>()?;
                Self::Streams(inputs.into_iter().zip(outputs).collect())
            }
        };
        match tests.count() {
            0 => Err("no tests"),
            1..=MAX_TESTS => Ok(tests),
            _ => Err("more than 10000 tests"),
        }
    }

    /// Number of tests.
    pub fn count(&self) -> usize {
        match self {
            Self::Streams(cases) => cases.len(),
            Self::Calls { cases, .. } => cases.len(),
            Self::Asserts { statements, .. } => statements.len(),
        }
    }
}

/// Arguments of a call: a list, or a text with one JSON value per line (LiveCodeBench).
fn arguments(input: Value) -> Result<Value, &'static str> {
    match input {
        Value::Array(_) => Ok(input),
        Value::String(text) => {
            let values = text.lines().filter(|line| !line.trim().is_empty());
            let values = values.map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
            values.map(Value::Array).map_err(|_| "an input is not JSON, one argument per line")
        }
        _ => Err("an input of a function is neither a list nor a text"),
    }
}

/// An expected result: any JSON value, or its text (LiveCodeBench).
fn expected(output: Value) -> Value {
    let parsed = output.as_str().and_then(|text| serde_json::from_str(text).ok());
    parsed.unwrap_or(output)
}

/// A stream: text, or a list of lines (TACO).
fn stream(value: &Value) -> Result<String, &'static str> {
    let line = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let text = match value {
        Value::Array(lines) => lines.iter().map(line).collect::<Option<Vec<_>>>(),
        value => line(value).map(|text| vec![text]),
    };
    text.map(|lines| lines.join("\n")).ok_or("an input or output is neither a text nor its lines")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_of_public_datasets_are_read() {
        let streams = r#"{"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", 7]}"#;
        let pairs = [("1 2\n", "3\n"), ("3\n4", "7")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(Tests::parse(streams), Ok(Tests::Streams(pairs.to_vec())));
        let calls = r#"{"fn_name": "add", "inputs": [[1, 2], "3\n[4]\n"], "outputs": [[3], "7"]}"#;
        let cases = vec![(json!([1, 2]), json!([3])), (json!([3, [4]]), json!(7))];
        assert_eq!(Tests::parse(calls), Ok(Tests::Calls { function: "add".to_owned(), cases }));
        let asserts = |setup: &str| Tests::Asserts {
            setup: setup.to_owned(),
            statements: vec!["assert f() == 1".to_owned()],
        };
        assert_eq!(Tests::parse(r#"["assert f() == 1"]"#), Ok(asserts("")));
        let with_setup = r#"{"setup": "import re", "asserts": ["assert f() == 1"]}"#;
        assert_eq!(Tests::parse(with_setup), Ok(asserts("import re")));
    }

    #[test]
    fn unusable_tests_have_a_reason() {
        let many = json!(vec!["assert True"; MAX_TESTS + 1]).to_string();
        assert_eq!(Tests::parse(&many), Err("more than 10000 tests"));
        let format = "tests are JSON: a list of assert statements, {\"asserts\", \"setup\"?} or \
                      {\"inputs\", \"outputs\", \"fn_name\"?}";
        for (text, why) in [
            ("4", format),
            (r#"{"inputs": [], "outputs": [], "functions": 1}"#, format),
            ("[]", "no tests"),
            (r#"{"inputs": [], "outputs": []}"#, "no tests"),
            (r#"{"inputs": ["1"], "outputs": []}"#, "inputs and outputs differ in number"),
            (
                r#"{"inputs": [{}], "outputs": ["1"]}"#,
                "an input or output is neither a text nor its lines",
            ),
            (
                r#"{"fn_name": "f", "inputs": ["x"], "outputs": [1]}"#,
                "an input is not JSON, one argument per line",
            ),
            (
                r#"{"fn_name": "f()", "inputs": [[]], "outputs": [1]}"#,
                "fn_name is not the name of a function",
            ),
        ] {
            assert_eq!(Tests::parse(text), Err(why), "{text}");
        }
    }
}
