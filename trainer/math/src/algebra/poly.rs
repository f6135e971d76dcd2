//! Polynomials in canonical form: each monomial once, no zero coefficients.

use std::collections::BTreeMap;
use std::ops::Neg;

use num_traits::{CheckedAdd, CheckedMul, One, Zero};

use crate::algebra::generator::{monomial_power, product};
use crate::algebra::{Generator, Monomial, Poly, Rational};
use crate::limits::{Checked, Fuel, MAX_BITS, MAX_TERMS, TOO_LARGE, UNDEFINED};

/// Work of a reduction of a fraction, in products of its words.
const REDUCTION: u64 = 4;

impl From<Rational> for Poly {
    fn from(value: Rational) -> Self {
        Self::term(value, Monomial::new())
    }
}

impl Poly {
    pub fn term(coefficient: Rational, monomial: Monomial) -> Self {
        let mut poly = Self::default();
        if !coefficient.is_zero() {
            poly.terms.insert(monomial, coefficient);
        }
        poly
    }

    pub fn terms(&self) -> impl DoubleEndedIterator<Item = (&Monomial, &Rational)> {
        self.terms.iter()
    }

    pub fn generators(&self) -> impl Iterator<Item = &Generator> {
        self.terms.keys().flat_map(BTreeMap::keys)
    }

    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// Coefficient and monomial of a polynomial with one term.
    pub fn single_term(&self) -> Option<(&Monomial, &Rational)> {
        let mut terms = self.terms.iter();
        let first = terms.next();
        if terms.next().is_none() { first } else { None }
    }

    /// The value of a constant polynomial.
    pub fn rational(&self) -> Option<Rational> {
        match self.single_term() {
            Some((monomial, value)) if monomial.is_empty() => Some(value.clone()),
            None if self.is_zero() => Some(Rational::zero()),
            _ => None,
        }
    }

    pub fn negated(&self) -> Self {
        Self { terms: self.terms.iter().map(|(key, value)| (key.clone(), value.neg())).collect() }
    }

    pub fn scaled(&self, factor: &Rational) -> Checked<Self> {
        let mut result = Self::default();
        for (monomial, coefficient) in &self.terms {
            result.add(monomial.clone(), product_of(coefficient, factor)?)?;
        }
        result.checked()
    }

    pub fn plus(&self, other: &Self) -> Checked<Self> {
        let mut sum = self.clone();
        for (monomial, coefficient) in &other.terms {
            sum.add(monomial.clone(), coefficient.clone())?;
        }
        sum.checked()
    }

    pub fn times(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        fuel.spend(self.work().saturating_mul(other.work()))?;
        let mut result = Self::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let (factor, monomial) = product(left, right)?;
                result.add(monomial, product_of(&product_of(a, b)?, &factor)?)?;
            }
            if result.terms.len() > MAX_TERMS {
                return Err(TOO_LARGE);
            }
        }
        result.checked()
    }

    /// `1 ÷ self` of a polynomial with one term.
    pub fn inverse(&self) -> Checked<Self> {
        let (monomial, coefficient) = self.single_term().ok_or(UNDEFINED)?;
        let (factor, monomial) = monomial_power(monomial, -1)?;
        Self::term(product_of(&coefficient.recip(), &factor)?, monomial).checked()
    }

    /// The polynomial in constants by which each monomial of open generators is multiplied.
    pub fn by_open_part(&self) -> Checked<BTreeMap<Monomial, Self>> {
        let mut parts = BTreeMap::<Monomial, Self>::new();
        for (monomial, coefficient) in &self.terms {
            let (open, closed) =
                monomial.clone().into_iter().partition(|(generator, _)| generator.is_open());
            parts.entry(open).or_default().add(closed, coefficient.clone())?;
        }
        Ok(parts)
    }

    fn add(&mut self, monomial: Monomial, coefficient: Rational) -> Checked<()> {
        let sum = match self.terms.remove(&monomial) {
            Some(present) => sum_of(&present, &coefficient)?,
            None => coefficient,
        };
        if !sum.is_zero() {
            self.terms.insert(monomial, sum);
        }
        Ok(())
    }

    fn bits(&self) -> u64 {
        let bits = |value: &Rational| value.numer().bits().max(value.denom().bits());
        self.terms.values().map(bits).max().unwrap_or_default()
    }

    /// Work of a copy: generators, with those in arguments of functions, and 64-bit words of
    /// coefficients. Fractions are also reduced by their common divisor.
    pub fn work(&self) -> u64 {
        let term = |(monomial, value): (&Monomial, &Rational)| {
            let generators: u64 = monomial.keys().map(Generator::work).sum();
            let words = value.numer().bits().saturating_add(value.denom().bits()) / 64;
            let reduction = if value.is_integer() { 1 } else { REDUCTION };
            generators.saturating_add(words).saturating_add(1).saturating_mul(reduction)
        };
        self.terms.iter().map(term).sum()
    }

    fn checked(self) -> Checked<Self> {
        let fits = self.terms.len() <= MAX_TERMS && self.bits() <= MAX_BITS;
        if fits { Ok(self) } else { Err(TOO_LARGE) }
    }

    pub fn one() -> Self {
        Self::from(Rational::one())
    }
}

/// `left × right`. Integers, which are most coefficients, need no common divisors.
fn product_of(left: &Rational, right: &Rational) -> Checked<Rational> {
    let product = if left.is_integer() && right.is_integer() {
        left.numer().checked_mul(right.numer()).map(Rational::from_integer)
    } else {
        left.checked_mul(right)
    };
    product.ok_or(TOO_LARGE)
}

/// `left + right`.
fn sum_of(left: &Rational, right: &Rational) -> Checked<Rational> {
    let sum = if left.is_integer() && right.is_integer() {
        left.numer().checked_add(right.numer()).map(Rational::from_integer)
    } else {
        left.checked_add(right)
    };
    sum.ok_or(TOO_LARGE)
}
