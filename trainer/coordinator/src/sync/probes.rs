//! Check of an engine's weights by reading elements back (docs/decisions/0047).
//!
//! An engine with other weights is replaced. One that cannot read its model's parameters by name,
//! as SGLang's Qwen models, is not checked.

use std::io::Read as _;
use std::path::Path;

use hyper::StatusCode;
use rljob_crds::names::WEIGHT_PROBES_FILE;
use rljob_protocol::probe::{MAX_PROBES_BYTES, WeightProbe};
use serde_json::Value;

use crate::engines::{EngineClient, EngineError};

/// The elements in a folder of published weights; none if it has no such file. Blocks.
pub fn of_folder(folder: &Path) -> std::io::Result<Vec<WeightProbe>> {
    let file = match std::fs::File::open(folder.join(WEIGHT_PROBES_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut json = Vec::new();
    file.take(MAX_PROBES_BYTES).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// Compares elements that an engine holds with those that were sent. Returns whether it can read
/// them.
///
/// # Errors
/// An element differs, or the engine does not answer.
pub async fn check(
    client: &EngineClient,
    url: &str,
    probes: &[WeightProbe],
) -> Result<bool, EngineError> {
    for probe in probes {
        let found = match client.weights_by_name(url, &probe.name, probe.entries).await {
            Ok(found) => found,
            Err(EngineError::Rejected { status: StatusCode::BAD_REQUEST, message, .. }) => {
                tracing::info!(url, message, "the engine cannot read its weights by name");
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        if let Some((position, expected, found)) = difference(probe, &found) {
            let (name, found) = (probe.name.clone(), found.to_string());
            return Err(EngineError::WrongElement { name, position, expected, found });
        }
    }
    Ok(!probes.is_empty())
}

/// The first element that differs: its position, and what was sent and found there. Elements that
/// the response lacks, as of a rank without heads of keys, are not judged.
fn difference<'a>(probe: &WeightProbe, found: &'a Value) -> Option<(u32, f32, &'a Value)> {
    let row = match found.get(0) {
        Some(row @ Value::Array(_)) => row,
        _ => found,
    };
    let mut elements = probe.positions.iter().zip(&probe.values);
    elements.find_map(|(position, expected)| {
        let found = row.get(usize::try_from(*position).ok()?)?;
        (!is_equal(*expected, found)).then_some((*position, *expected, found))
    })
}

/// Whether an engine holds what was sent, in the type of its weights: FP32 or BF16.
fn is_equal(sent: f32, held: &Value) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the number is an FP32 number")]
    let held = held.as_f64().map(|held| held as f32);
    held.is_some_and(|held| {
        [sent, bf16(sent)].iter().any(|sent| sent.to_bits() == held.to_bits())
            || sent == 0.0 && held == 0.0
    })
}

/// The nearest number of BF16, ties to even.
fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let half = 0x7fff_u32.wrapping_add(bits >> 16 & 1);
    f32::from_bits(bits.wrapping_add(half) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use rljob_protocol::probe::WeightProbe;
    use serde_json::{Value, json};

    use super::{bf16, difference, of_folder};

    fn probe(positions: &[u32], values: &[f32]) -> WeightProbe {
        let (positions, values) = (positions.to_vec(), values.to_vec());
        WeightProbe { name: "w".to_owned(), entries: 1, positions, values }
    }

    fn found(probe: &WeightProbe, response: &Value) -> Option<(u32, f32, Value)> {
        difference(probe, response).map(|(position, sent, found)| (position, sent, found.clone()))
    }

    #[test]
    fn elements_are_compared_in_a_vector_and_in_the_first_row_of_a_matrix() {
        let sent = probe(&[0, 2], &[0.5, -1.25]);
        assert_eq!(found(&sent, &json!([0.5, 9.0, -1.25])), None);
        assert_eq!(found(&sent, &json!([[0.5, 9.0, -1.25], [1.0, 1.0, 1.0]])), None);
        assert_eq!(found(&sent, &json!([[0.5, 9.0, -1.5]])), Some((2, -1.25, json!(-1.5))));
        assert_eq!(found(&sent, &json!([null, 9.0, -1.25])), Some((0, 0.5, Value::Null)));
        assert_eq!(found(&sent, &json!([])), None, "an engine that lacks them is not judged");
        assert_eq!(found(&sent, &json!([0.5])), None);
        assert_eq!(found(&probe(&[0], &[0.0]), &json!([-0.0])), None);
    }

    #[test]
    fn an_engine_in_bf16_holds_the_nearest_number() {
        let sent = 1.002_f32;
        assert_eq!(bf16(sent).to_bits(), 1.0_f32.to_bits());
        assert_eq!(bf16(1.0 + 1.0 / 256.0).to_bits(), 1.0_f32.to_bits(), "a tie goes to even");
        assert_eq!(bf16(-1.006).to_bits(), (-1.007_812_5_f32).to_bits());
        let one = probe(&[0], &[sent]);
        assert_eq!(found(&one, &json!([sent])), None);
        assert_eq!(found(&one, &json!([1.0])), None);
        assert_eq!(found(&one, &json!([1.007_812_5])), Some((0, sent, json!(1.007_812_5))));
    }

    #[test]
    fn a_folder_may_lack_elements_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(folder.path()).unwrap(), []);
        let one = vec![probe(&[1], &[0.1])];
        let file = folder.path().join("probes.json");
        std::fs::write(&file, serde_json::to_vec(&one).unwrap()).unwrap();
        assert_eq!(of_folder(folder.path()).unwrap(), one);
        std::fs::write(&file, "[{}]").unwrap();
        assert!(of_folder(folder.path()).unwrap_err().to_string().contains("missing field"));
    }
}
