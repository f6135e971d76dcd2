//! Values: quotients of polynomials. A divisor of one term is divided out.

use num_traits::{CheckedDiv, One, Zero};

use crate::algebra::{Exponent, Generator, Monomial, Poly, Rational, Value, numeric};
use crate::limits::{Checked, Fuel, UNDEFINED};

impl From<Rational> for Value {
    fn from(value: Rational) -> Self {
        Self::from(Poly::from(value))
    }
}

impl From<Poly> for Value {
    fn from(numerator: Poly) -> Self {
        Self { numerator, denominator: Poly::one() }
    }
}

impl From<Generator> for Value {
    fn from(generator: Generator) -> Self {
        let monomial = Monomial::from([(generator, Exponent::one())]);
        Self::from(Poly::term(Rational::one(), monomial))
    }
}

impl Value {
    pub fn integer(value: i64) -> Self {
        Self::from(crate::algebra::integer(value))
    }

    pub fn variable(name: &str) -> Self {
        Self::from(Generator::Variable(name.to_owned()))
    }

    pub fn numerator(&self) -> &Poly {
        &self.numerator
    }

    pub fn denominator(&self) -> &Poly {
        &self.denominator
    }

    /// The numerator if the denominator is 1.
    pub fn polynomial(&self) -> Option<&Poly> {
        (self.denominator == Poly::one()).then_some(&self.numerator)
    }

    pub fn rational(&self) -> Option<Rational> {
        if let Some(polynomial) = self.polynomial() {
            return polynomial.rational();
        }
        // `(2 + 2√2) ÷ (1 + √2)` is 2.
        let (monomial, divisor) = self.denominator.terms().next()?;
        let (_, value) = self.numerator.terms().find(|(key, _)| *key == monomial)?;
        let quotient = value.checked_div(divisor)?;
        let product = self.denominator.scaled(&quotient).ok()?;
        (product == self.numerator).then_some(quotient)
    }

    pub fn is_zero(&self) -> bool {
        self.numerator.is_zero()
    }

    /// Whether it depends on a variable or an unknown function.
    pub fn is_open(&self) -> bool {
        self.generators().any(Generator::is_open)
    }

    pub fn generators(&self) -> impl Iterator<Item = &Generator> {
        self.numerator.generators().chain(self.denominator.generators())
    }

    /// Whether the text of the value contains the variable, functions included.
    pub fn contains(&self, name: &str) -> bool {
        self.generators().any(|generator| mentions(generator, name))
    }

    pub fn negated(&self) -> Self {
        Self { numerator: self.numerator.negated(), denominator: self.denominator.clone() }
    }

    /// Work of a copy; see [`Poly::work`].
    pub fn work(&self) -> u64 {
        self.numerator.work().saturating_add(self.denominator.work())
    }

    pub fn plus(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        fuel.spend(self.work().saturating_add(other.work()))?;
        if self.denominator == other.denominator {
            let numerator = self.numerator.plus(&other.numerator)?;
            return Self::quotient(numerator, &self.denominator, fuel);
        }
        let left = self.numerator.times(&other.denominator, fuel)?;
        let right = other.numerator.times(&self.denominator, fuel)?;
        let denominator = self.denominator.times(&other.denominator, fuel)?;
        Self::quotient(left.plus(&right)?, &denominator, fuel)
    }

    pub fn minus(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        self.plus(&other.negated(), fuel)
    }

    pub fn times(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        let numerator = self.numerator.times(&other.numerator, fuel)?;
        let denominator = self.denominator.times(&other.denominator, fuel)?;
        Self::quotient(numerator, &denominator, fuel)
    }

    pub fn over(&self, other: &Self, fuel: &Fuel) -> Checked<Self> {
        let numerator = self.numerator.times(&other.denominator, fuel)?;
        let denominator = self.denominator.times(&other.numerator, fuel)?;
        Self::quotient(numerator, &denominator, fuel)
    }

    pub fn scaled(&self, factor: &Rational) -> Checked<Self> {
        let numerator = self.numerator.scaled(factor)?;
        Ok(Self { numerator, denominator: self.denominator.clone() })
    }

    fn quotient(numerator: Poly, denominator: &Poly, fuel: &Fuel) -> Checked<Self> {
        if denominator.is_zero() {
            return Err(UNDEFINED);
        }
        if numerator.is_zero() {
            return Ok(Self::from(numerator));
        }
        if *denominator == Poly::one() {
            return Ok(Self::from(numerator));
        }
        if denominator.single_term().is_some() {
            return Ok(Self::from(numerator.times(&denominator.inverse()?, fuel)?));
        }
        let Some((_, first)) = denominator.terms().next() else { return Err(UNDEFINED) };
        let factor = first.recip();
        let value = Self {
            numerator: numerator.scaled(&factor)?,
            denominator: denominator.scaled(&factor)?,
        };
        Ok(value.rational().map_or(value, Self::from))
    }

    /// Whether both have the same value: exactly, or numerically if both are irrational and
    /// contain functions without an exact form (see [`numeric::is_zero`]).
    pub fn equals(&self, other: &Self, fuel: &Fuel) -> bool {
        if self == other {
            return true;
        }
        let Ok(difference) = self.minus(other, fuel) else { return false };
        let rational = |value: &Self| value.rational().is_some();
        difference.is_zero()
            || (!rational(self) && !rational(other) && numeric::is_zero(&difference))
    }

    pub fn one() -> Self {
        Self::from(Rational::one())
    }

    pub fn zero() -> Self {
        Self::from(Rational::zero())
    }
}

fn mentions(generator: &Generator, name: &str) -> bool {
    match generator {
        Generator::Variable(variable) => variable == name,
        Generator::Function(_, arguments) => arguments.iter().any(|value| value.contains(name)),
        Generator::Power(_, exponent) => exponent.keys().any(|inner| mentions(inner, name)),
        _ => false,
    }
}
