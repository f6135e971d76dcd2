//! Generators and monomials, with the relations `p^(1/2)·p^(1/2) = p` and `i² = −1`.

use num_bigint::{BigInt, BigUint};
use num_traits::{CheckedAdd, CheckedMul, CheckedSub, One, Pow, Signed, ToPrimitive, Zero};

use crate::algebra::{Exponent, Function, Generator, Monomial, Rational, Value, integer};
use crate::limits::{Checked, MAX_BITS, MAX_EXPONENT, TOO_LARGE};

impl Generator {
    /// Whether the value depends on a variable or an unknown function.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Variable(_) | Self::Function(Function::Named(_), _) => true,
            Self::Function(_, arguments) => arguments.iter().any(Value::is_open),
            Self::Power(_, exponent) => exponent.keys().any(Self::is_open),
            _ => false,
        }
    }

    /// Work of a copy: 1 and that of each argument.
    pub fn work(&self) -> u64 {
        match self {
            Self::Function(_, arguments) => {
                arguments.iter().map(Value::work).fold(1, u64::saturating_add)
            }
            Self::Power(base, exponent) => {
                exponent.keys().map(Self::work).fold(base.work(), u64::saturating_add)
            }
            _ => 1,
        }
    }
}

/// `left × right` as a rational factor and a monomial.
pub fn product(left: &Monomial, right: &Monomial) -> Checked<(Rational, Monomial)> {
    let (mut factor, mut monomial) = (Rational::one(), left.clone());
    for (generator, exponent) in right {
        let own = monomial.remove(generator).unwrap_or_else(Exponent::zero);
        let sum = own.checked_add(exponent).ok_or(TOO_LARGE)?;
        let (carried, exponent) = reduced(generator, sum)?;
        factor = factor.checked_mul(&carried).ok_or(TOO_LARGE)?;
        if !exponent.is_zero() {
            monomial.insert(generator.clone(), exponent);
        }
    }
    Ok((factor, monomial))
}

/// Moves the rational part of `generator ^ exponent` to a factor.
fn reduced(generator: &Generator, exponent: Exponent) -> Checked<(Rational, Exponent)> {
    if exponent.numer().abs() > MAX_EXPONENT || *exponent.denom() > MAX_EXPONENT {
        return Err(TOO_LARGE);
    }
    match generator {
        Generator::Prime(base) => {
            let whole = exponent.floor();
            let rest = exponent.checked_sub(&whole).ok_or(TOO_LARGE)?;
            Ok((power(base, whole.to_integer())?, rest))
        }
        Generator::Imaginary => {
            let quarter = exponent.to_integer().rem_euclid(4);
            let sign = if quarter >= 2 { integer(-1) } else { Rational::one() };
            Ok((sign, Exponent::from_integer(quarter % 2)))
        }
        _ => Ok((Rational::one(), exponent)),
    }
}

/// `base ^ exponent` within the size limits.
pub fn power(base: &BigUint, exponent: i64) -> Checked<Rational> {
    let magnitude = exponent.unsigned_abs();
    if base.bits().saturating_mul(magnitude) > MAX_BITS {
        return Err(TOO_LARGE);
    }
    let magnitude = magnitude.to_u32().ok_or(TOO_LARGE)?;
    let value = Rational::from_integer(BigInt::from(Pow::pow(base, magnitude)));
    Ok(if exponent.is_negative() { value.recip() } else { value })
}

/// `monomial ^ exponent` for whole exponents.
pub fn monomial_power(monomial: &Monomial, exponent: i64) -> Checked<(Rational, Monomial)> {
    let (mut factor, mut result) = (Rational::one(), Monomial::new());
    for (generator, own) in monomial {
        if exponent.abs() > MAX_EXPONENT {
            return Err(TOO_LARGE);
        }
        let product = own.checked_mul(&exponent.into()).ok_or(TOO_LARGE)?;
        let (carried, exponent) = reduced(generator, product)?;
        factor = factor.checked_mul(&carried).ok_or(TOO_LARGE)?;
        if !exponent.is_zero() {
            result.insert(generator.clone(), exponent);
        }
    }
    Ok((factor, result))
}
