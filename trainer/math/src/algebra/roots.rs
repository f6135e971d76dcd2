//! Roots.

use num_bigint::BigUint;
use num_traits::{CheckedAdd, CheckedDiv, CheckedMul, CheckedSub, One, Signed, Zero};

use crate::algebra::generator::{monomial_power, product};
use crate::algebra::primes::factors;
use crate::algebra::{
    Exponent, Function, Generator, Monomial, Poly, Rational, Value, integer, numeric,
};
use crate::limits::{Checked, Fuel, TOO_LARGE, UNDEFINED, Unsupported};

/// Maximum degree of a root.
const MAX_DEGREE: u32 = 64;

/// A generator to a rational power.
pub fn generator_power(generator: Generator, exponent: Exponent) -> Checked<Value> {
    let (factor, monomial) = product(&Monomial::new(), &Monomial::from([(generator, exponent)]))?;
    Ok(Value::from(Poly::term(factor, monomial)))
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
            let degree = i64::from(degree).into();
            let exponent = exponent.checked_div(&degree).ok_or(UNDEFINED)?;
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
        let positive = rational_root(&value.abs(), degree, fuel)?;
        return match degree {
            2 => positive.times(&Value::from(Generator::Imaginary), fuel),
            degree if degree % 2 == 1 => Ok(positive.negated()),
            _ => Err(UNDEFINED),
        };
    }
    let mut result = Value::one();
    let mut multiply = |number: &BigUint, sign: i64| {
        for (prime, count) in factors(number, fuel)? {
            let count = i64::from(count).saturating_mul(sign);
            let exponent = Exponent::new(count, i64::from(degree));
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
    let surd = b.checked_mul(b).and_then(|square| square.checked_mul(&factor));
    let square = a.checked_mul(a).zip(surd).and_then(|(a, b)| a.checked_sub(&b));
    let square = square.ok_or(TOO_LARGE)?;
    if !rest.is_empty() || square.is_negative() {
        return Ok(None);
    }
    let Some(d) = rational_root(&square, 2, fuel)?.rational() else { return Ok(None) };
    let half = |value: Option<Rational>| {
        let half = value.and_then(|value| value.checked_div(&integer(2)));
        rational_root(&half.ok_or(TOO_LARGE)?, 2, fuel)
    };
    let (large, small) = (half(a.checked_add(&d))?, half(a.checked_sub(&d))?);
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
