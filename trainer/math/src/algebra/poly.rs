//! Polynomials in canonical form: each monomial once, no zero coefficients.

use std::collections::BTreeMap;

use num_traits::{One, Zero};

use crate::algebra::generator::{monomial_power, product};
use crate::algebra::{Generator, Monomial, Poly, Rational};
use crate::limits::{Checked, Fuel, MAX_BITS, MAX_TERMS, TOO_LARGE, UNDEFINED};

impl From<Rational> for Poly {
    fn from(value: Rational) -> Self {
        Self::term(value, Monomial::new())
    }
}

impl Poly {
    pub fn term(coefficient: Rational, monomial: Monomial) -> Self {
        let mut poly = Self::default();
        poly.add(monomial, coefficient);
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
        Self { terms: self.terms.iter().map(|(key, value)| (key.clone(), -value)).collect() }
    }

    pub fn scaled(&self, factor: &Rational) -> Checked<Self> {
        let terms = self.terms.iter().map(|(key, value)| (key.clone(), value * factor));
        Self { terms: terms.filter(|(_, value)| !value.is_zero()).collect() }.checked()
    }

    pub fn plus(&self, other: &Self) -> Checked<Self> {
        let mut sum = self.clone();
        for (monomial, coefficient) in &other.terms {
            sum.add(monomial.clone(), coefficient.clone());
        }
        sum.checked()
    }

    pub fn times(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        let work = 1 + (self.bits() + other.bits()) / 64;
        fuel.spend(work * self.terms.len() as u64 * other.terms.len() as u64)?;
        let mut result = Self::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let (factor, monomial) = product(left, right)?;
                result.add(monomial, a * b * factor);
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
        Self::term(coefficient.recip() * factor, monomial).checked()
    }

    /// The polynomial in constants by which each monomial of open generators is multiplied.
    pub fn by_open_part(&self) -> BTreeMap<Monomial, Self> {
        let mut parts = BTreeMap::<Monomial, Self>::new();
        for (monomial, coefficient) in &self.terms {
            let (open, closed) =
                monomial.clone().into_iter().partition(|(generator, _)| generator.is_open());
            parts.entry(open).or_default().add(closed, coefficient.clone());
        }
        parts
    }

    fn add(&mut self, monomial: Monomial, coefficient: Rational) {
        let sum = self.terms.remove(&monomial).unwrap_or_else(Rational::zero) + coefficient;
        if !sum.is_zero() {
            self.terms.insert(monomial, sum);
        }
    }

    fn bits(&self) -> u64 {
        let bits = |value: &Rational| value.numer().bits().max(value.denom().bits());
        self.terms.values().map(bits).max().unwrap_or_default()
    }

    fn checked(self) -> Checked<Self> {
        let fits = self.terms.len() <= MAX_TERMS && self.bits() <= MAX_BITS;
        if fits { Ok(self) } else { Err(TOO_LARGE) }
    }

    pub fn one() -> Self {
        Self::from(Rational::one())
    }
}
