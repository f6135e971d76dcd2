//! Quantities: a value with a percent sign or a unit, and their equality.

use num_traits::Signed;

use crate::algebra::{Generator, Value, integer};
use crate::limits::{Checked, Fuel, Unsupported};
use crate::units::Unit;

#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    pub value: Value,
    /// Whether a percent sign follows: the value or a hundredth of it.
    pub percent: bool,
    /// A unit with a known scale.
    pub unit: Option<Unit>,
    /// `10m` as 10 meters instead of a product with a variable.
    pub metric: Option<(Value, Unit)>,
}

impl Quantity {
    pub fn plain(value: Value) -> Self {
        Self { value, percent: false, unit: None, metric: None }
    }

    pub fn equals(&self, other: &Self, fuel: &Fuel) -> bool {
        let reading = |a: &Self, b: &Self| match (&a.metric, &b.unit) {
            (Some((value, unit)), Some(_)) => {
                let a = Self { unit: Some(unit.clone()), ..Self::plain(value.clone()) };
                a.same(b, fuel)
            }
            _ => false,
        };
        self.same(other, fuel) || reading(self, other) || reading(other, self)
    }

    fn same(&self, other: &Self, fuel: &Fuel) -> bool {
        let equal = |a: &Checked<Value>, b: &Checked<Value>| match (a, b) {
            (Ok(a), Ok(b)) => a.equals(b, fuel),
            _ => false,
        };
        match (&self.unit, &other.unit) {
            (Some(a), Some(b)) if a.dimensions == b.dimensions => {
                equal(&self.value.scaled(&a.scale), &other.value.scaled(&b.scale))
            }
            (Some(_), Some(_)) => {
                (self.is_angle() || other.is_angle())
                    && equal(&self.radians(fuel), &other.radians(fuel))
            }
            (None, None) => self.same_percentage(other, fuel),
            _ => {
                self.value.equals(&other.value, fuel)
                    || (self.is_angle() || other.is_angle())
                        && equal(&self.radians(fuel), &other.radians(fuel))
            }
        }
    }

    fn same_percentage(&self, other: &Self, fuel: &Fuel) -> bool {
        let hundredth = |percentage: &Self, other: &Self| {
            let value = || percentage.value.scaled(&integer(100).recip());
            percentage.percent
                && !other.percent
                && value().is_ok_and(|value| value.equals(&other.value, fuel))
        };
        // `0.2\%` is not 0.2: below 1 the sign is not omitted.
        let small = |value: &Self| {
            value.percent && value.value.rational().is_none_or(|value| value.abs() < integer(1))
        };
        let same_signs = self.percent == other.percent;
        ((same_signs || !(small(self) || small(other))) && self.value.equals(&other.value, fuel))
            || hundredth(self, other)
            || hundredth(other, self)
    }

    fn is_angle(&self) -> bool {
        self.has_dimension("angle")
    }

    fn has_dimension(&self, name: &str) -> bool {
        self.unit
            .as_ref()
            .is_some_and(|unit| unit.dimensions.len() == 1 && unit.dimensions.get(name) == Some(&1))
    }

    /// Radians of an angle; plain values are radians.
    fn radians(&self, fuel: &Fuel) -> Checked<Value> {
        if self.is_angle() {
            let factor = Value::from(Generator::Pi).scaled(&integer(180).recip())?;
            return self.value.times(&factor, fuel);
        }
        if self.unit.is_none() || self.has_dimension("radians") {
            Ok(self.value.clone())
        } else {
            Err(Unsupported("not an angle"))
        }
    }
}
