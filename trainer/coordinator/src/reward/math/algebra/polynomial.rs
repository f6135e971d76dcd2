//! Polynomials in several variables with rational coefficients, and their quotients. Operations
//! return `None` beyond the limits of size.

use std::collections::BTreeMap;

use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Maximum number of terms.
const MAX_TERMS: usize = 128;
/// Maximum degree in one variable.
const MAX_DEGREE: u32 = 32;
/// Maximum bits of a numerator or denominator.
const MAX_BITS: u64 = 4096;

/// Exponents by variable, all above 0.
type Monomial = BTreeMap<String, u32>;

/// Coefficients by monomial, none of them 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Polynomial(BTreeMap<Monomial, BigRational>);

impl Polynomial {
    fn constant(value: BigRational) -> Self {
        let mut terms = BTreeMap::new();
        if !value.is_zero() {
            terms.insert(Monomial::new(), value);
        }
        Self(terms)
    }

    fn variable(name: &str) -> Self {
        Self(BTreeMap::from([(Monomial::from([(name.to_owned(), 1)]), BigRational::one())]))
    }

    pub fn has_variable(&self) -> bool {
        self.0.keys().any(|monomial| !monomial.is_empty())
    }

    fn contains(&self, name: &str) -> bool {
        self.0.keys().any(|monomial| monomial.contains_key(name))
    }

    fn as_constant(&self) -> Option<BigRational> {
        if self.has_variable() {
            return None;
        }
        Some(self.0.values().next().cloned().unwrap_or_else(BigRational::zero))
    }

    #[must_use]
    pub fn negated(&self) -> Self {
        Self(self.0.iter().map(|(monomial, value)| (monomial.clone(), -value)).collect())
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.0.clone();
        for (monomial, value) in &other.0 {
            let entry = sum.entry(monomial.clone()).or_insert_with(BigRational::zero);
            *entry += value;
            if entry.is_zero() {
                sum.remove(monomial);
            }
        }
        Self(sum).limited()
    }

    fn times(&self, other: &Self) -> Option<Self> {
        let mut product = Self::default();
        for (left, a) in &self.0 {
            let mut row = BTreeMap::new();
            for (right, b) in &other.0 {
                let mut monomial = left.clone();
                for (name, exponent) in right {
                    *monomial.entry(name.clone()).or_insert(0) += exponent;
                }
                row.insert(monomial, a * b);
            }
            product = product.plus(&Self(row))?;
        }
        Some(product)
    }

    fn limited(self) -> Option<Self> {
        let is_small = |(monomial, value): (&Monomial, &BigRational)| {
            monomial.values().all(|exponent| *exponent <= MAX_DEGREE)
                && value.numer().bits().max(value.denom().bits()) <= MAX_BITS
        };
        (self.0.len() <= MAX_TERMS && self.0.iter().all(is_small)).then_some(self)
    }

    /// Whether one is the other times a nonzero number, or a positive one.
    pub fn is_multiple_of(&self, other: &Self, positive: bool) -> bool {
        let ((Some(a), Some(b)), true) =
            ((self.0.values().next(), other.0.values().next()), self.0.len() == other.0.len())
        else {
            return false;
        };
        let ratio = a / b;
        let is_scaled =
            |((left, a), (right, b)): ((&Monomial, &BigRational), (&Monomial, &BigRational))| {
                left == right && *a == b * &ratio
            };
        (!positive || ratio.is_positive()) && self.0.iter().zip(&other.0).all(is_scaled)
    }
}

/// A quotient of polynomials.
#[derive(Clone, Debug)]
pub struct Fraction {
    above: Polynomial,
    below: Polynomial,
}

impl PartialEq for Fraction {
    /// By cross multiplication; fractions too large to multiply are not equal.
    fn eq(&self, other: &Self) -> bool {
        match (self.above.times(&other.below), other.above.times(&self.below)) {
            (Some(left), Some(right)) => left == right,
            _ => false,
        }
    }
}

impl Fraction {
    pub fn constant(value: BigRational) -> Self {
        Self { above: Polynomial::constant(value), below: Polynomial::constant(One::one()) }
    }

    pub fn variable(name: &str) -> Self {
        Self { above: Polynomial::variable(name), below: Polynomial::constant(One::one()) }
    }

    pub fn has_variable(&self) -> bool {
        self.above.has_variable() || self.below.has_variable()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.above.contains(name) || self.below.contains(name)
    }

    pub fn numerator(&self) -> Polynomial {
        self.above.clone()
    }

    /// The value without a denominator in variables.
    pub fn polynomial(&self) -> Option<Polynomial> {
        let below = self.below.as_constant()?;
        self.above.times(&Polynomial::constant(below.recip()))
    }

    pub fn integer(&self) -> Option<i64> {
        let value = self.polynomial()?.as_constant()?;
        value.is_integer().then(|| value.to_i64())?
    }

    #[must_use]
    pub fn negated(&self) -> Self {
        Self { above: self.above.negated(), below: self.below.clone() }
    }

    pub fn plus(&self, other: &Self) -> Option<Self> {
        let (left, right) = (self.above.times(&other.below)?, other.above.times(&self.below)?);
        Some(Self { above: left.plus(&right)?, below: self.below.times(&other.below)? })
    }

    pub fn minus(&self, other: &Self) -> Option<Self> {
        self.plus(&other.negated())
    }

    pub fn times(&self, other: &Self) -> Option<Self> {
        let (above, below) = (self.above.times(&other.above)?, self.below.times(&other.below)?);
        Some(Self { above, below })
    }

    /// `None` for a division by 0.
    pub fn over(&self, other: &Self) -> Option<Self> {
        let inverse = Self { above: other.below.clone(), below: other.above.clone() };
        (other.above != Polynomial::default()).then(|| self.times(&inverse))?
    }

    pub fn power(&self, exponent: i64) -> Option<Self> {
        let mut power = Self::constant(One::one());
        for _ in 0..exponent.unsigned_abs() {
            power = power.times(self)?;
        }
        if exponent < 0 { Self::constant(One::one()).over(&power) } else { Some(power) }
    }
}
