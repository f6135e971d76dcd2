//! Sets of real numbers: boundary points with the membership of each point and of each gap.
//!
//! ```text
//!  [1, 2) ∪ (3, ∞)      points      1      2      3
//!                       at         yes    no     no
//!                       between no     yes    no    yes
//! ```

use std::cmp::Ordering;

use crate::algebra::{Value, numeric};
use crate::limits::{Checked, Fuel, MAX_ITEMS, TOO_LARGE, Unsupported};

/// Relative distance below which the order of two different boundaries is unknown.
const MIN_DISTANCE: f64 = 1e-9;

#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    points: Vec<Value>,
    at: Vec<bool>,
    /// One more than points: before the first, between, after the last.
    between: Vec<bool>,
}

/// End of an interval; `None` is infinite.
#[derive(Clone, Debug)]
pub struct End {
    pub value: Option<Value>,
    pub closed: bool,
}

impl Region {
    pub fn all() -> Self {
        Self { points: Vec::new(), at: Vec::new(), between: vec![true] }
    }

    pub fn point(value: Value) -> Self {
        Self { points: vec![value], at: vec![true], between: vec![false, false] }
    }

    pub fn is_empty(&self) -> bool {
        !self.at.iter().chain(&self.between).any(|member| *member)
    }

    /// Whether it has an inner point.
    pub fn is_wide(&self) -> bool {
        self.between.iter().any(|member| *member)
    }

    /// The interval between two ends; empty intervals are errors.
    pub fn interval(low: End, high: End, fuel: &Fuel) -> Checked<Self> {
        if let (Some(a), Some(b)) = (&low.value, &high.value)
            && order(a, b, fuel)? != Ordering::Less
        {
            return Err(Unsupported("the ends of an interval are not in order"));
        }
        let mut region = Self { points: Vec::new(), at: Vec::new(), between: Vec::new() };
        if let Some(value) = low.value {
            region.between.push(false);
            region.points.push(value);
            region.at.push(low.closed);
        }
        region.between.push(true);
        if let Some(value) = high.value {
            region.points.push(value);
            region.at.push(high.closed);
            region.between.push(false);
        }
        Ok(region)
    }

    pub fn complement(&self) -> Self {
        let not = |members: &[bool]| members.iter().map(|member| !member).collect();
        Self { points: self.points.clone(), at: not(&self.at), between: not(&self.between) }
    }

    pub fn union(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        self.combine(other, |a, b| a || b, fuel)
    }

    pub fn intersection(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        self.combine(other, |a, b| a && b, fuel)
    }

    pub fn equals(&self, other: &Self, fuel: &Fuel) -> bool {
        self.at == other.at
            && self.between == other.between
            && self.points.iter().zip(&other.points).all(|(a, b)| a.equals(b, fuel))
    }

    fn combine(
        &self,
        other: &Self,
        member: impl Fn(bool, bool) -> bool,
        fuel: &Fuel,
    ) -> Checked<Self> {
        let side = |region: &Self, index: usize, here: bool| {
            let members = if here { &region.at } else { &region.between };
            members.get(index).copied().unwrap_or_default()
        };
        let first = member(side(self, 0, false), side(other, 0, false));
        let mut result = Self { points: Vec::new(), at: Vec::new(), between: vec![first] };
        let (mut left, mut right) = (0_usize, 0_usize);
        loop {
            let (a, b) = (self.points.get(left), other.points.get(right));
            let next = match (a, b) {
                (Some(a), Some(b)) => order(a, b, fuel)?,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let (in_left, in_right) = (next != Ordering::Greater, next != Ordering::Less);
            let at = member(side(self, left, in_left), side(other, right, in_right));
            left = left.saturating_add(usize::from(in_left));
            right = right.saturating_add(usize::from(in_right));
            let after = member(side(self, left, false), side(other, right, false));
            if result.between.last() == Some(&at) && at == after {
                continue;
            }
            result.points.extend(if in_left { a } else { b }.cloned());
            result.at.push(at);
            result.between.push(after);
        }
        if result.points.len() > MAX_ITEMS { Err(TOO_LARGE) } else { Ok(result) }
    }
}

/// Order of two real constants.
fn order(left: &Value, right: &Value, fuel: &Fuel) -> Checked<Ordering> {
    if left.equals(right, fuel) {
        return Ok(Ordering::Equal);
    }
    if let (Some(a), Some(b)) = (left.rational(), right.rational()) {
        return Ok(a.cmp(&b));
    }
    let unknown = Unsupported("the order of two boundaries is not known");
    let (Some(a), Some(b)) = (numeric::real(left), numeric::real(right)) else {
        return Err(unknown);
    };
    if (a - b).abs() <= MIN_DISTANCE * a.abs().max(b.abs()) {
        return Err(unknown);
    }
    a.partial_cmp(&b).ok_or(unknown)
}
