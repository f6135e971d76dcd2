//! Exact numbers: sums of `rational × √n × πᵏ` with square-free `n`. The form is canonical, so
//! equal numbers compare equal: `\frac{1}{\sqrt{2}}` is `\frac{\sqrt{2}}{2}`, and `0.1 + 0.2` is
//! `0.3`.

use std::collections::BTreeMap;

use num_bigint::{BigInt, BigUint};
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Maximum size of a numerator or denominator in bits.
const MAX_BITS: u64 = 8192;
/// Maximum number of terms of a sum.
const MAX_TERMS: usize = 32;
/// Largest trial divisor for square factors.
const MAX_FACTOR: u64 = 100_000;

/// Irrational part of a term: `√radicand × π^pi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unit {
    radicand: u64,
    pi: i32,
}

const ONE: Unit = Unit { radicand: 1, pi: 0 };

/// A sum of non-zero terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surd {
    terms: BTreeMap<Unit, BigRational>,
}

impl From<BigRational> for Surd {
    fn from(value: BigRational) -> Self {
        Self::term(ONE, value)
    }
}

impl Surd {
    pub fn pi() -> Self {
        Self::term(Unit { radicand: 1, pi: 1 }, BigRational::one())
    }

    fn term(unit: Unit, coefficient: BigRational) -> Self {
        let terms = if coefficient.is_zero() {
            BTreeMap::new()
        } else {
            BTreeMap::from([(unit, coefficient)])
        };
        Self { terms }
    }

    /// The value if it is rational.
    pub fn rational(&self) -> Option<BigRational> {
        match self.terms.len() {
            0 => Some(BigRational::zero()),
            1 => self.terms.get(&ONE).cloned(),
            _ => None,
        }
    }

    /// The nearest double, possibly infinite.
    pub fn to_f64(&self) -> f64 {
        let term = |(unit, coefficient): (&Unit, &BigRational)| {
            coefficient.to_f64().unwrap_or(f64::NAN)
                * (unit.radicand as f64).sqrt()
                * std::f64::consts::PI.powi(unit.pi)
        };
        self.terms.iter().map(term).sum()
    }

    pub fn negated(&self) -> Self {
        Self { terms: self.terms.iter().map(|(unit, coefficient)| (*unit, -coefficient)).collect() }
    }

    /// `self + other`; `None` if it exceeds the size limits.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (unit, coefficient) in &other.terms {
            sum.add(*unit, coefficient.clone());
        }
        sum.checked()
    }

    /// `self × other`; `None` if it exceeds the size limits.
    pub fn times(&self, other: &Self) -> Option<Self> {
        let mut product = Self { terms: BTreeMap::new() };
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                // √a √b = g √(ab ÷ g²) with g = gcd(a, b): the radicand stays square-free.
                let divisor = left.radicand.gcd(&right.radicand);
                let radicand = (left.radicand / divisor).checked_mul(right.radicand / divisor)?;
                let unit = Unit { radicand, pi: left.pi.checked_add(right.pi)? };
                product.add(unit, a * b * BigRational::from_integer(divisor.into()));
            }
        }
        product.checked()
    }

    /// `1 ÷ self`; `None` for 0 and for sums that conjugation does not invert.
    pub fn inverse(&self) -> Option<Self> {
        let mut terms = self.terms.iter();
        let (first, second) = (terms.next()?, terms.next());
        let Some(second) = second else {
            let (unit, coefficient) = first;
            let inverse = (coefficient * BigRational::from_integer(unit.radicand.into())).recip();
            return Some(Self::term(
                Unit { radicand: unit.radicand, pi: unit.pi.checked_neg()? },
                inverse,
            ));
        };
        if terms.next().is_some() {
            return None;
        }
        // 1 ÷ (a + b) = (a − b) ÷ (a² − b²). The divisor is one term unless powers of π differ.
        let conjugate =
            Self::term(*first.0, first.1.clone()).plus(&Self::term(*second.0, -second.1))?;
        let divisor = self.times(&conjugate)?;
        if divisor.terms.len() == 1 { conjugate.times(&divisor.inverse()?) } else { None }
    }

    /// `√value`; `None` for negative values and if the square factors are too large to find.
    pub fn square_root(value: &BigRational) -> Option<Self> {
        if value.is_negative() {
            return None;
        }
        let (outside, radicand) = square_factor((value.numer() * value.denom()).magnitude())?;
        let coefficient = BigRational::new(BigInt::from(outside), value.denom().clone());
        Self::term(Unit { radicand, pi: 0 }, coefficient).checked()
    }

    /// `self` to an integer power; `None` if undefined or if it exceeds the size limits.
    pub fn power(&self, exponent: i32) -> Option<Self> {
        let base = if exponent < 0 { self.inverse()? } else { self.clone() };
        let mut result = Self::from(BigRational::one());
        for bit in (0..u32::BITS - exponent.unsigned_abs().leading_zeros()).rev() {
            result = result.times(&result)?;
            if exponent.unsigned_abs() >> bit & 1 == 1 {
                result = result.times(&base)?;
            }
        }
        Some(result)
    }

    fn add(&mut self, unit: Unit, coefficient: BigRational) {
        let sum = self.terms.remove(&unit).unwrap_or_else(BigRational::zero) + coefficient;
        if !sum.is_zero() {
            self.terms.insert(unit, sum);
        }
    }

    fn checked(self) -> Option<Self> {
        let fits = |value: &BigRational| {
            value.numer().bits() <= MAX_BITS && value.denom().bits() <= MAX_BITS
        };
        (self.terms.len() <= MAX_TERMS && self.terms.values().all(fits)).then_some(self)
    }
}

/// Factors `value` into `outside² × radicand` with a square-free radicand; `None` if `value` is too
/// large.
fn square_factor(value: &BigUint) -> Option<(BigUint, u64)> {
    let root = value.sqrt();
    if &(&root * &root) == value {
        return Some((root, 1));
    }
    let mut rest = value.to_u128()?;
    let (mut outside, mut radicand) = (1_u128, 1_u64);
    let mut factor = 2_u64;
    while u128::from(factor).pow(3) <= rest {
        if factor > MAX_FACTOR {
            return None;
        }
        let (divisor, square) = (u128::from(factor), u128::from(factor) * u128::from(factor));
        while rest.is_multiple_of(square) {
            rest /= square;
            outside = outside.checked_mul(divisor)?;
        }
        if rest.is_multiple_of(divisor) {
            rest /= divisor;
            radicand = radicand.checked_mul(factor)?;
        }
        factor += 1;
    }
    // The rest has at most two prime factors; it is a square only if they are equal.
    let root = BigUint::from(rest).sqrt().to_u128()?;
    if root * root == rest {
        outside = outside.checked_mul(root)?;
    } else {
        radicand = radicand.checked_mul(u64::try_from(rest).ok()?)?;
    }
    Some((BigUint::from(outside), radicand))
}

/// The exact `degree`-th root of a rational; `None` if it is irrational or not real.
pub fn rational_root(value: &BigRational, degree: u32) -> Option<BigRational> {
    if degree == 0 || (value.is_negative() && degree.is_multiple_of(2)) {
        return None;
    }
    let (above, below) = (value.numer().nth_root(degree), value.denom().nth_root(degree));
    let exact = above.pow(degree) == *value.numer() && below.pow(degree) == *value.denom();
    exact.then(|| BigRational::new(above, below))
}

#[cfg(test)]
mod tests {
    use super::{BigRational, Surd, rational_root};

    fn rational(above: i64, below: i64) -> BigRational {
        BigRational::new(above.into(), below.into())
    }

    fn root(value: i64) -> Surd {
        Surd::square_root(&rational(value, 1)).unwrap()
    }

    #[test]
    fn roots_have_a_canonical_form() {
        assert_eq!(root(8), root(2).times(&Surd::from(rational(2, 1))).unwrap());
        assert_eq!(root(9), Surd::from(rational(3, 1)));
        assert_eq!(Surd::square_root(&rational(1, 2)).unwrap(), root(2).inverse().unwrap());
        assert_eq!(
            root(6).times(&root(10)).unwrap(),
            root(15).times(&Surd::from(rational(2, 1))).unwrap()
        );
        let sum = root(2).plus(&root(3)).unwrap();
        assert_eq!(sum.times(&sum.inverse().unwrap()).unwrap(), Surd::from(rational(1, 1)));
        // 99 991 is prime: its square is found although its cube exceeds the trial divisors.
        assert_eq!(
            root(2 * 99_991 * 99_991),
            root(2).times(&Surd::from(rational(99_991, 1))).unwrap()
        );
        assert_eq!(Surd::square_root(&rational(-1, 1)), None);
    }

    #[test]
    fn powers_are_exact_and_limited() {
        assert_eq!(root(2).power(4), Some(Surd::from(rational(4, 1))));
        assert_eq!(Surd::from(rational(2, 3)).power(-2), Some(Surd::from(rational(9, 4))));
        assert_eq!(Surd::from(rational(0, 1)).power(-1), None);
        assert_eq!(Surd::from(rational(2, 1)).power(i32::MAX), None);
        assert_eq!(
            Surd::pi().power(2).unwrap().times(&Surd::pi().power(-2).unwrap()).unwrap(),
            Surd::from(rational(1, 1))
        );
        assert_eq!(rational_root(&rational(-8, 27), 3), Some(rational(-2, 3)));
        assert_eq!(rational_root(&rational(2, 1), 3), None);
    }
}
