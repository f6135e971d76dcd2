//! Powers and roots.

use num_bigint::BigUint;
use num_traits::{One, Signed, ToPrimitive, Zero};

use crate::algebra::elementary::cis;
use crate::algebra::generator::{monomial_power, power as whole_power, product};
use crate::algebra::primes::factors;
use crate::algebra::{
    Exponent, Function, Generator, Monomial, Poly, Rational, Value, integer, numeric,
};
use crate::limits::{Checked, Fuel, MAX_EXPONENT, TOO_LARGE, UNDEFINED, Unsupported};

/// Maximum exponent of a polynomial with several terms.
const MAX_POLYNOMIAL_EXPONENT: u64 = 32;
/// Maximum degree of a root.
const MAX_DEGREE: u32 = 64;

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
        let factor = rational_power(coefficient, exponent)? * carried;
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
        return Ok(if negative { -Rational::one() } else { Rational::one() });
    }
    let above = whole_power(base.numer().magnitude(), exponent)?;
    let value = above / whole_power(base.denom().magnitude(), exponent)?;
    Ok(if base.is_negative() && exponent % 2 != 0 { -value } else { value })
}

/// A generator to a rational power.
fn generator_power(generator: Generator, exponent: Exponent) -> Checked<Value> {
    let (factor, monomial) = product(&Monomial::new(), &Monomial::from([(generator, exponent)]))?;
    Ok(Value::from(Poly::term(factor, monomial)))
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
            let exponent = exponent.scaled(&integer(sign * i64::from(count)))?;
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
            logarithm.remove(&Generator::Ln(prime.clone())) == Some(-Exponent::one())
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

/// The real root if it exists, else the principal square root.
pub fn root(value: &Value, degree: u32, fuel: &Fuel) -> Checked<Value> {
    if degree == 1 {
        return Ok(value.clone());
    }
    if degree == 0 || degree > MAX_DEGREE {
        return Err(Unsupported("the degree of the root is not supported"));
    }
    if let Some(rational) = value.rational() {
        return rational_root(&rational, degree, fuel);
    }
    if let Some((monomial, coefficient)) = value.polynomial().and_then(Poly::single_term)
        && coefficient.is_positive()
        && (monomial.keys().all(is_positive) || is_plain(monomial))
    {
        let mut result = rational_root(coefficient, degree, fuel)?;
        for (generator, exponent) in monomial {
            let exponent = exponent / i64::from(degree);
            result = result.times(&generator_power(generator.clone(), exponent)?, fuel)?;
        }
        return Ok(result);
    }
    match if degree == 2 { denested(value, fuel)? } else { None } {
        Some(root) => Ok(root),
        None => opaque_root(value, degree, fuel),
    }
}

/// Whether a factor is a positive real number.
fn is_positive(generator: &Generator) -> bool {
    matches!(generator, Generator::Prime(_) | Generator::Pi | Generator::Euler | Generator::Ln(_))
}

/// Whether a monomial is one variable.
fn is_plain(monomial: &Monomial) -> bool {
    let mut factors = monomial.iter();
    let plain = factors.next().is_some_and(|(generator, exponent)| {
        matches!(generator, Generator::Variable(_)) && exponent.is_one()
    });
    plain && factors.next().is_none()
}

fn rational_root(value: &Rational, degree: u32, fuel: &Fuel) -> Checked<Value> {
    if value.is_zero() {
        return Ok(Value::zero());
    }
    if value.is_negative() {
        let positive = rational_root(&-value, degree, fuel)?;
        return match degree {
            2 => positive.times(&Value::from(Generator::Imaginary), fuel),
            degree if degree % 2 == 1 => Ok(positive.negated()),
            _ => Err(UNDEFINED),
        };
    }
    let mut result = Value::one();
    let mut multiply = |number: &BigUint, sign: i64| {
        for (prime, count) in factors(number, fuel)? {
            let exponent = Exponent::new(sign * i64::from(count), i64::from(degree));
            result = result.times(&generator_power(Generator::Prime(prime), exponent)?, fuel)?;
        }
        Ok(())
    };
    multiply(value.numer().magnitude(), 1)?;
    multiply(value.denom().magnitude(), -1)?;
    Ok(result)
}

/// `√(a + b√c)` as `√((a + d)/2) ± √((a − d)/2)` with `d = √(a² − b²c)` if d is rational.
fn denested(value: &Value, fuel: &Fuel) -> Checked<Option<Value>> {
    let Some(polynomial) = value.polynomial() else { return Ok(None) };
    let mut terms = polynomial.terms();
    let (Some((none, a)), Some((surd, b)), None) = (terms.next(), terms.next(), terms.next())
    else {
        return Ok(None);
    };
    let is_surd = surd.iter().all(|(generator, exponent)| {
        matches!(generator, Generator::Prime(_)) && *exponent.denom() == 2
    });
    if !none.is_empty() || !is_surd || !a.is_positive() {
        return Ok(None);
    }
    let (factor, rest) = monomial_power(surd, 2)?;
    let square = a * a - b * b * factor;
    if !rest.is_empty() || square.is_negative() {
        return Ok(None);
    }
    let Some(d) = rational_root(&square, 2, fuel)?.rational() else { return Ok(None) };
    let half = |value: Rational| rational_root(&(value / integer(2)), 2, fuel);
    let (large, small) = (half(a + &d)?, half(a - &d)?);
    let small = if b.is_negative() { small.negated() } else { small };
    Ok(Some(large.plus(&small, fuel)?))
}

/// A root as a generator, with a positive rational factor moved outside.
fn opaque_root(value: &Value, degree: u32, fuel: &Fuel) -> Checked<Value> {
    if !value.is_open() {
        let negative = numeric::real(value).map(|value| value < 0.0);
        match (negative, degree % 2) {
            (Some(true), 1) => return Ok(opaque_root(&value.negated(), degree, fuel)?.negated()),
            (Some(true), 0) if degree == 2 => {
                let positive = root(&value.negated(), 2, fuel)?;
                return positive.times(&Value::from(Generator::Imaginary), fuel);
            }
            (Some(false), _) => {}
            _ => return Err(Unsupported("the root is not real")),
        }
    }
    let content = value.numerator().terms().next().map(|(_, first)| first.abs());
    let content = content.ok_or(UNDEFINED)?;
    let inside = value.scaled(&content.recip())?;
    let outside = rational_root(&content, degree, fuel)?;
    let inner = Generator::Function(Function::Root(degree), vec![inside]);
    outside.times(&Value::from(inner), fuel)
}
