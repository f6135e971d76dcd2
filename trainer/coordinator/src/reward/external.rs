//! JSON protocol of external verifiers (`http`, `command`, `python`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::reward::verifier::{Question, Score, VerifierError};

pub use crate::reward::session::MAX_RESPONSE;

/// Maximum length of an excerpt in characters.
const MAX_EXCERPT: usize = 200;

/// Request body or line.
#[derive(Debug, Serialize)]
pub struct Request<'a> {
    /// Commands return it with their response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    prompt: &'a str,
    completion: &'a str,
    answer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<&'a Map<String, Value>>,
}

impl<'a> Request<'a> {
    pub fn new(id: Option<u64>, question: Question<'a>) -> Self {
        let Question { prompt, completion, answer, fields } = question;
        Self { id, prompt, completion, answer, fields }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Response {
    id: Option<u64>,
    reward: f64,
    #[serde(default)]
    components: BTreeMap<String, f64>,
    answer: Option<String>,
}

/// Parses the response to the request with this id.
pub fn parse(response: &[u8], id: Option<u64>) -> Result<Score, VerifierError> {
    let parsed: Response =
        serde_json::from_slice(response).map_err(|error| invalid(response, &error))?;
    if parsed.id != id {
        let text = |id: Option<u64>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let reason = format!("expected id {}, found {}", text(id), text(parsed.id));
        return Err(invalid(response, &reason));
    }
    let Response { reward, components, answer, .. } = parsed;
    Ok(Score { value: reward, components, answer, ..Score::default() })
}

/// The error for a response of more than `max` bytes.
pub fn too_long(response: &[u8], max: usize) -> VerifierError {
    invalid(response, &format!("longer than {max} bytes"))
}

/// The error for a response that cannot be used.
pub fn invalid(response: &[u8], reason: &dyn std::fmt::Display) -> VerifierError {
    unexpected(response, "{\"reward\": number}", reason)
}

/// As [`invalid`], where another response was expected.
pub fn unexpected(
    response: &[u8],
    expected: &'static str,
    reason: &dyn std::fmt::Display,
) -> VerifierError {
    let (excerpt, reason) = (excerpt(response), reason.to_string());
    VerifierError::InvalidResponse { excerpt, expected, reason }
}

/// First characters of a text, on one line.
pub fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim()
        .chars()
        .take(MAX_EXCERPT)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_have_fields_of_the_row_if_the_data_name_some() {
        let fields = json!({"extra.index": 7});
        let question = Question { prompt: "p", completion: "c", answer: None, fields: None };
        let request = |question| serde_json::to_value(Request::new(Some(1), question)).unwrap();
        let without = json!({"id": 1, "prompt": "p", "completion": "c", "answer": null});
        assert_eq!(request(question), without);
        let with = request(Question { fields: fields.as_object(), ..question });
        assert_eq!(with["fields"], fields);
    }
}
