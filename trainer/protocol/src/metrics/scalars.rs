//! Named numbers as fields of a JSON object.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::registry::{REGISTRY, REWARD_COMPONENT_PREFIX};

/// Named numbers. Serialized as JSON fields, whole numbers without a fraction; on reading, fields
/// that are not numbers are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars(BTreeMap<String, f64>);

impl Scalars {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// The value of `name`, or 0.
    pub fn get_or_zero(&self, name: &str) -> f64 {
        self.get(name).unwrap_or_default()
    }

    /// Sets `name`.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    /// Sets `name`, or removes it.
    pub fn set_option(&mut self, name: &str, value: Option<f64>) {
        match value {
            Some(value) => self.set(name, value),
            None => drop(self.0.remove(name)),
        }
    }

    /// Adds to `name`, which starts at 0.
    pub fn add(&mut self, name: &str, value: f64) {
        *self.0.entry(name.to_owned()).or_default() += value;
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The means of the rewards' components: name without prefix, and value.
    pub fn reward_components(&self) -> impl Iterator<Item = (&str, f64)> {
        self.iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(REWARD_COMPONENT_PREFIX)?, value)))
    }

    /// Removes the names that a peer of this protocol version does not define.
    pub(super) fn keep_known_by(&mut self, protocol: u32) {
        if protocol < 2 {
            self.0.retain(|name, _| {
                REGISTRY.iter().any(|metric| metric.name == name && metric.since <= protocol)
            });
        }
    }
}

impl<N: Into<String>> FromIterator<(N, f64)> for Scalars {
    fn from_iter<I: IntoIterator<Item = (N, f64)>>(scalars: I) -> Self {
        Self(scalars.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// 2^53: larger whole numbers are not exact in f64.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Serialize for Scalars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, value)| {
            // Peers of version 1 read counts as integers.
            let negative_zero = value == 0.0 && value.is_sign_negative();
            let whole = value.fract() == 0.0 && value.abs() < EXACT && !negative_zero;
            (name, if whole { Value::from(value as i64) } else { Value::from(value) })
        }))
    }
}

impl<'de> Deserialize<'de> for Scalars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let numbers = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_f64()?)))
            .map(|(name, value)| {
                if value.is_finite() {
                    Ok((name, value))
                } else {
                    Err(D::Error::custom(format!("metric `{name}` is not finite")))
                }
            });
        Ok(Self(numbers.collect::<Result<_, _>>()?))
    }
}
