//! Numbers: exact for rationals, square roots and π; otherwise doubles, compared to nine digits.
//!
//! Other roots (`\sqrt[3]{2}`), powers with irrational exponents, and inverses of long sums are
//! doubles. Two exact numbers are compared without rounding: `0.333` is not `\frac{1}{3}`.

use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};

use crate::reward::math::surd::{Surd, rational_root};

/// Maximum relative difference of a double and an equal number.
const TOLERANCE: f64 = 1e-9;
/// Maximum absolute exponent of an exact power.
const MAX_EXPONENT: i32 = 8192;

#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    Exact(Surd),
    /// A finite double.
    Approximate(f64),
    /// ∞ or −∞, as the end of an interval.
    Infinite {
        negative: bool,
    },
}

impl From<BigRational> for Number {
    fn from(value: BigRational) -> Self {
        Self::Exact(Surd::from(value))
    }
}

impl Number {
    /// Whether both have the same value.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Infinite { negative: a }, Self::Infinite { negative: b }) => a == b,
            (Self::Infinite { .. }, _) | (_, Self::Infinite { .. }) => false,
            _ => match (self.to_f64(), other.to_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
                _ => false,
            },
        }
    }

    pub fn negated(&self) -> Self {
        match self {
            Self::Exact(value) => Self::Exact(value.negated()),
            Self::Approximate(value) => Self::Approximate(-value),
            Self::Infinite { negative } => Self::Infinite { negative: !negative },
        }
    }

    /// `self + other`; `None` if undefined or out of range.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        self.combine(other, Surd::plus, |a, b| a + b)
    }

    /// `self × other`; `None` if undefined or out of range.
    pub fn times(&self, other: &Self) -> Option<Self> {
        self.combine(other, Surd::times, |a, b| a * b)
    }

    /// `self ÷ other`; `None` if undefined or out of range.
    pub fn over(&self, other: &Self) -> Option<Self> {
        if let (Self::Exact(a), Self::Exact(b)) = (self, other)
            && let Some(inverse) = b.inverse()
        {
            return a.times(&inverse).map(Self::Exact);
        }
        approximate(self.to_f64()? / other.to_f64()?)
    }

    /// `self` to a power; `None` without a real value.
    pub fn power(&self, exponent: &Self) -> Option<Self> {
        let Self::Exact(exact) = exponent else {
            return approximate(self.to_f64()?.powf(exponent.to_f64()?));
        };
        let Some(exponent) = exact.rational() else {
            return approximate(self.to_f64()?.powf(exact.to_f64()));
        };
        let (above, below) = (exponent.numer().to_i32()?, exponent.denom().to_u32()?);
        if above.abs() > MAX_EXPONENT {
            return None;
        }
        let root = self.root(below)?;
        match &root {
            Self::Exact(root) => root.power(above).map(Self::Exact),
            _ => approximate(root.to_f64()?.powi(above)),
        }
    }

    /// The real `degree`-th root, if it exists.
    pub fn root(&self, degree: u32) -> Option<Self> {
        if degree == 1 {
            return Some(self.clone());
        }
        if let Self::Exact(value) = self
            && let Some(rational) = value.rational()
        {
            if let Some(root) = rational_root(&rational, degree) {
                return Some(Self::from(root));
            }
            if degree == 2
                && let Some(root) = Surd::square_root(&rational)
            {
                return Some(Self::Exact(root));
            }
            if rational.is_negative() && !degree.is_multiple_of(2) {
                return Self::from(-rational).root(degree).map(|root| root.negated());
            }
        }
        approximate(self.to_f64()?.powf(1.0 / f64::from(degree)))
    }

    /// `self!` of a whole number up to 500.
    pub fn factorial(&self) -> Option<Self> {
        let Self::Exact(value) = self else { return None };
        let value = value
            .rational()
            .filter(BigRational::is_integer)?
            .to_u32()
            .filter(|value| *value <= 500)?;
        let product = (1..=value).map(num_bigint::BigInt::from).product();
        Some(Self::from(BigRational::from_integer(product)))
    }

    pub fn magnitude(&self) -> Option<Self> {
        Some(if self.to_f64()? < 0.0 { self.negated() } else { self.clone() })
    }

    fn combine(
        &self,
        other: &Self,
        exact: impl Fn(&Surd, &Surd) -> Option<Surd>,
        doubles: impl Fn(f64, f64) -> f64,
    ) -> Option<Self> {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => exact(a, b).map(Self::Exact),
            _ => approximate(doubles(self.to_f64()?, other.to_f64()?)),
        }
    }

    fn to_f64(&self) -> Option<f64> {
        match self {
            Self::Exact(value) => Some(value.to_f64()).filter(|value| value.is_finite()),
            Self::Approximate(value) => Some(*value),
            Self::Infinite { .. } => None,
        }
    }
}

fn approximate(value: f64) -> Option<Number> {
    value.is_finite().then_some(Number::Approximate(value))
}
