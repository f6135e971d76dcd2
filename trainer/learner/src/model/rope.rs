//! Frequencies of the rotary embedding (Su et al., arXiv 2104.09864) and their scaling for longer
//! contexts.

use std::f32::consts::TAU;

use serde::Deserialize;

/// Scaling of Llama 3.1 (`rope_type: llama3`): long wavelengths are stretched by `factor`, short
/// ones are unchanged, those between are interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// Stretch of long wavelengths.
    pub factor: f64,
    /// Wavelengths above the original context ÷ this are long.
    pub low_freq_factor: f64,
    /// Wavelengths below the original context ÷ this are short.
    pub high_freq_factor: f64,
    /// Context of the model before scaling, in tokens.
    pub original_max_position_embeddings: f64,
}

/// `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).
#[derive(Deserialize)]
pub(super) struct RawRope {
    pub rope_theta: Option<f64>,
    rope_type: Option<String>,
    r#type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

impl RawRope {
    /// The scaling, or an error if it is not supported.
    pub fn scaling(&self) -> Result<Option<RopeScaling>, String> {
        if self.partial_rotary_factor.is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON) {
            return Err(
                "partial_rotary_factor is not supported, only rotary embeddings of whole heads"
                    .to_owned(),
            );
        }
        match self.rope_type.as_deref().or(self.r#type.as_deref()) {
            None | Some("default") => Ok(None),
            Some("llama3") => self.llama3().map(Some),
            Some(kind) => {
                Err(format!("rope_type `{kind}` is not supported, only `default` and `llama3`"))
            }
        }
    }

    fn llama3(&self) -> Result<RopeScaling, String> {
        let positive = |key: &str, value: Option<f64>| {
            value
                .filter(|value| *value > 0.0 && value.is_finite())
                .ok_or_else(|| format!("rope_type `llama3` needs {key}, a number above 0"))
        };
        let scaling = RopeScaling {
            factor: positive("factor", self.factor)?,
            low_freq_factor: positive("low_freq_factor", self.low_freq_factor)?,
            high_freq_factor: positive("high_freq_factor", self.high_freq_factor)?,
            original_max_position_embeddings: positive(
                "original_max_position_embeddings",
                self.original_max_position_embeddings,
            )?,
        };
        if scaling.high_freq_factor <= scaling.low_freq_factor {
            return Err(
                "rope_type `llama3` needs high_freq_factor above low_freq_factor".to_owned()
            );
        }
        Ok(scaling)
    }
}

impl RopeScaling {
    fn scale(&self, frequency: f32) -> f32 {
        let (factor, low, high) =
            (self.factor as f32, self.low_freq_factor as f32, self.high_freq_factor as f32);
        let (context, wavelength) = (self.original_max_position_embeddings as f32, TAU / frequency);
        if wavelength > context / low {
            frequency / factor
        } else if wavelength < context / high {
            frequency
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}

/// Rotation angles in radians per position, one for each of the `head_dim ÷ 2` pairs of a head;
/// computed in fp32, as in transformers.
pub fn frequencies(theta: f64, head_dim: i64, scaling: Option<RopeScaling>) -> Vec<f32> {
    let frequency = |index: i64| 1.0 / (theta as f32).powf(index as f32 / head_dim as f32);
    let scaled = |frequency| scaling.map_or(frequency, |scaling| scaling.scale(frequency));
    (0..head_dim).step_by(2).map(frequency).map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use super::{RawRope, RopeScaling};

    fn read(json: serde_json::Value) -> Result<Option<RopeScaling>, String> {
        serde_json::from_value::<RawRope>(json).unwrap().scaling()
    }

    #[test]
    fn llama_3_1_scaling_is_read_under_either_name_and_requires_all_numbers() {
        let mut json = serde_json::json!({
            "type": "llama3", "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        let expected = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        assert_eq!(read(json.clone()), Ok(Some(expected)));
        json["factor"] = serde_json::Value::Null;
        assert_eq!(read(json), Err("rope_type `llama3` needs factor, a number above 0".to_owned()));
        assert_eq!(read(serde_json::json!({"type": "default"})), Ok(None));
    }

    #[test]
    fn long_wavelengths_are_stretched_and_short_ones_are_unchanged() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64.0,
        };
        assert_eq!(
            [1.0, 0.08].map(|frequency| format!("{:.6}", scaling.scale(frequency))),
            ["1.000000", "0.010000"]
        );
        let between = scaling.scale(0.2);
        assert!(between > 0.025 && between < 0.2, "{between}");
    }
}
