//! Powers.

use std::ops::Neg;

use num_traits::{CheckedDiv, CheckedMul, One, Signed, ToPrimitive};

use crate::algebra::elementary::cis;
use crate::algebra::generator::{monomial_power, power as whole_power};
use crate::algebra::primes::factors;
use crate::algebra::roots::{generator_power, root};
use crate::algebra::{Exponent, Function, Generator, Monomial, Poly, Rational, Value, integer};
use crate::limits::{Checked, Fuel, MAX_EXPONENT, TOO_LARGE, UNDEFINED, Unsupported};

/// Maximum exponent of a polynomial with several terms.
const MAX_POLYNOMIAL_EXPONENT: u64 = 32;

/// `base ^ exponent`; fractional powers of negative numbers are real if the degree is odd.
pub fn power(base: &Value, exponent: &Value, fuel: &Fuel) -> Checked<Value> {
    if let Some(exponent) = exponent.rational() {
        let below = exponent.denom().to_u32().ok_or(TOO_LARGE)?;
        let above = exponent.numer().to_i64().ok_or(TOO_LARGE)?;
        return whole(&root(base, below, fuel)?, above, fuel);
    }
    if let Some(base) = base.rational().filter(Signed::is_positive) {
        return positive_power(&base, exponent, fuel);
    }
    if *base == Value::from(Generator::Euler) {
        return exponential(exponent, fuel);
    }
    if base.is_zero() || !(base.is_open() || exponent.is_open()) {
        return Err(Unsupported("a power with this base and exponent is not supported"));
    }
    Ok(Value::from(Generator::Function(Function::Power, vec![base.clone(), exponent.clone()])))
}

fn whole(base: &Value, exponent: i64, fuel: &Fuel) -> Checked<Value> {
    if exponent <= 0 && base.is_zero() {
        return Err(UNDEFINED);
    }
    if let Some((monomial, coefficient)) = base.polynomial().and_then(Poly::single_term) {
        let (carried, monomial) = monomial_power(monomial, exponent)?;
        let power = rational_power(coefficient, exponent)?;
        let factor = power.checked_mul(&carried).ok_or(TOO_LARGE)?;
        return Ok(Value::from(Poly::term(factor, monomial)));
    }
    if exponent.unsigned_abs() > MAX_POLYNOMIAL_EXPONENT {
        return Err(TOO_LARGE);
    }
    let mut result = Value::one();
    for _ in 0..exponent.unsigned_abs() {
        result = result.times(base, fuel)?;
    }
    if exponent < 0 { Value::one().over(&result, fuel) } else { Ok(result) }
}

fn rational_power(base: &Rational, exponent: i64) -> Checked<Rational> {
    if base.abs().is_one() {
        let negative = base.is_negative() && exponent % 2 != 0;
        return Ok(if negative { integer(-1) } else { Rational::one() });
    }
    let above = whole_power(base.numer().magnitude(), exponent)?;
    let below = whole_power(base.denom().magnitude(), exponent)?;
    let value = above.checked_div(&below).ok_or(UNDEFINED)?;
    Ok(if base.is_negative() && exponent % 2 != 0 { value.neg() } else { value })
}

fn small(value: &Rational) -> Checked<Exponent> {
    let above = value.numer().to_i64().filter(|above| above.abs() <= MAX_EXPONENT);
    let below = value.denom().to_i64().filter(|below| *below <= MAX_EXPONENT);
    Ok(Exponent::new(above.ok_or(TOO_LARGE)?, below.ok_or(TOO_LARGE)?))
}

/// A positive rational to an irrational or open exponent, as a product of powers of primes.
fn positive_power(base: &Rational, exponent: &Value, fuel: &Fuel) -> Checked<Value> {
    let mut result = Value::one();
    for (number, sign) in [(base.numer(), 1), (base.denom(), -1)] {
        for (prime, count) in factors(number.magnitude(), fuel)? {
            let count = i64::from(count).saturating_mul(sign);
            let exponent = exponent.scaled(&integer(count))?;
            let factor = generator_to(&Generator::Prime(prime), &exponent, fuel)?;
            result = result.times(&factor, fuel)?;
        }
    }
    Ok(result)
}

/// `e ^ exponent`.
pub fn exponential(exponent: &Value, fuel: &Fuel) -> Checked<Value> {
    generator_to(&Generator::Euler, exponent, fuel)
}

/// Power of a prime or e: one factor per term of the exponent.
fn generator_to(base: &Generator, exponent: &Value, fuel: &Fuel) -> Checked<Value> {
    let exponent = exponent
        .polynomial()
        .ok_or(Unsupported("a quotient with several terms in an exponent is not supported"))?;
    let mut result = Value::one();
    for (monomial, coefficient) in exponent.terms() {
        let factor = term_power(base, monomial, coefficient, fuel)?;
        result = result.times(&factor, fuel)?;
    }
    Ok(result)
}

fn term_power(
    base: &Generator,
    monomial: &Monomial,
    coefficient: &Rational,
    fuel: &Fuel,
) -> Checked<Value> {
    if monomial.is_empty() {
        return generator_power(base.clone(), small(coefficient)?);
    }
    // e^{ln q} and p^{ln q ÷ ln p} are q.
    let mut logarithm = monomial.clone();
    let matches = match base {
        Generator::Prime(prime) => {
            logarithm.remove(&Generator::Ln(prime.clone())) == Some(Exponent::from_integer(-1))
        }
        _ => true,
    };
    if let (true, Some((Generator::Ln(inner), exponent)), 1) =
        (matches, logarithm.first_key_value(), logarithm.len())
        && exponent.is_one()
    {
        return generator_power(Generator::Prime(inner.clone()), small(coefficient)?);
    }
    let half_turns =
        Monomial::from([(Generator::Imaginary, Exponent::one()), (Generator::Pi, Exponent::one())]);
    if *base == Generator::Euler
        && *monomial == half_turns
        && let Some(value) = cis(coefficient, fuel)?
    {
        return Ok(value);
    }
    let generator = Generator::Power(Box::new(base.clone()), monomial.clone());
    generator_power(generator, small(coefficient)?)
}
