//! Elementary functions: exact where an exact value is known, else a generator.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{CheckedMul, CheckedSub, One, Signed, ToPrimitive, Zero};

use crate::algebra::primes::factors;
use crate::algebra::roots::root;
use crate::algebra::{
    Exponent, Function, Generator, Monomial, Poly, Rational, Value, integer, numeric,
};
use crate::limits::{Checked, Fuel, MAX_BITS, TOO_LARGE, UNDEFINED, Unsupported};

/// Maximum argument of an exact factorial or binomial.
const MAX_FACTORIAL: u32 = 500;

/// Maximum size of an irrational value to round.
const MAX_ROUNDED: f64 = 1e6;
/// Minimum distance of such a value from a whole number.
const MIN_FRACTION: f64 = 1e-6;
/// Maximum lower index of a binomial of a variable that is expanded.
const MAX_EXPANDED: u32 = 8;

fn opaque(function: Function, argument: &Value) -> Value {
    Value::from(Generator::Function(function, vec![argument.clone()]))
}

/// Natural logarithm.
pub fn ln(value: &Value, fuel: &Fuel) -> Checked<Value> {
    if value.is_zero() {
        return Err(UNDEFINED);
    }
    let single = value.polynomial().and_then(Poly::single_term);
    let Some((monomial, coefficient)) = single.filter(|(monomial, coefficient)| {
        let known = |generator: &_| matches!(generator, Generator::Prime(_) | Generator::Euler);
        monomial.keys().all(known) && coefficient.is_positive()
    }) else {
        let positive = numeric::real(value).is_some_and(|value| value > 0.0);
        return if value.is_open() || positive {
            Ok(opaque(Function::Ln, value))
        } else {
            Err(Unsupported("the logarithm is not real"))
        };
    };
    let mut sum = Value::zero();
    for (generator, exponent) in monomial {
        let exponent = Rational::new((*exponent.numer()).into(), (*exponent.denom()).into());
        let term = match generator {
            Generator::Prime(prime) => Value::from(Generator::Ln(prime.clone())),
            _ => Value::one(),
        };
        sum = sum.plus(&term.scaled(&exponent)?, fuel)?;
    }
    for (number, sign) in [(coefficient.numer(), 1), (coefficient.denom(), -1)] {
        for (prime, count) in factors(number.magnitude(), fuel)? {
            let term = Value::from(Generator::Ln(prime));
            let count = i64::from(count).saturating_mul(sign);
            sum = sum.plus(&term.scaled(&integer(count))?, fuel)?;
        }
    }
    Ok(sum)
}

/// The argument as a rational multiple of π.
fn half_turns(value: &Value) -> Option<Rational> {
    if value.is_zero() {
        return Some(Rational::zero());
    }
    let (monomial, coefficient) = value.polynomial()?.single_term()?;
    let pi = Monomial::from([(Generator::Pi, Exponent::one())]);
    (*monomial == pi).then(|| coefficient.clone())
}

pub fn sin(value: &Value, fuel: &Fuel) -> Checked<Value> {
    if let Some(half_turns) = half_turns(value) {
        return sin_of_half_turns(&half_turns, fuel);
    }
    let (negative, argument) = without_sign(value);
    let sine = opaque(Function::Sin, &argument);
    Ok(if negative { sine.negated() } else { sine })
}

pub fn cos(value: &Value, fuel: &Fuel) -> Checked<Value> {
    if let Some(half_turns) = half_turns(value) {
        return cos_of_half_turns(&half_turns, fuel);
    }
    Ok(opaque(Function::Cos, &without_sign(value).1))
}

/// Sign of the first term, and the value without it.
fn without_sign(value: &Value) -> (bool, Value) {
    let first = value.numerator().terms().next();
    let negative = first.is_some_and(|(_, coefficient)| coefficient.is_negative());
    (negative, if negative { value.negated() } else { value.clone() })
}

fn cos_of_half_turns(half_turns: &Rational, fuel: &Fuel) -> Checked<Value> {
    let right_angle = Rational::new(1.into(), 2.into());
    sin_of_half_turns(&right_angle.checked_sub(half_turns).ok_or(TOO_LARGE)?, fuel)
}

/// `sin(q π)`, reduced to the first quadrant.
fn sin_of_half_turns(half_turns: &Rational, fuel: &Fuel) -> Checked<Value> {
    let full = half_turns.denom().checked_mul(&2.into()).ok_or(TOO_LARGE)?;
    let turn = Rational::new(half_turns.numer().mod_floor(&full), half_turns.denom().clone());
    let (negative, half) = match turn.checked_sub(&Rational::one()) {
        Some(rest) if !rest.is_negative() => (true, rest),
        _ => (false, turn),
    };
    let supplement = Rational::one().checked_sub(&half).ok_or(TOO_LARGE)?;
    let quadrant = half.min(supplement);
    let degrees = quadrant.checked_mul(&integer(180)).ok_or(TOO_LARGE)?;
    let exact = degrees.is_integer().then(|| degrees.numer().to_i64()).flatten();
    let value = match exact.map(|degrees| sine_of_degrees(degrees, fuel)).transpose()?.flatten() {
        Some(value) => value,
        None => opaque(Function::Sin, &Value::from(Generator::Pi).scaled(&quadrant)?),
    };
    Ok(if negative { value.negated() } else { value })
}

/// Exact sines between 0 and 90 degrees.
fn sine_of_degrees(degrees: i64, fuel: &Fuel) -> Checked<Option<Value>> {
    let sqrt = |number: i64| root(&Value::integer(number), 2, fuel);
    // √a + b√c, all divided by the last number.
    let sum = |a: i64, b: i64, c: i64, below: i64| {
        let sum = sqrt(a)?.plus(&sqrt(c)?.scaled(&integer(b))?, fuel)?;
        sum.scaled(&integer(below).recip()).map(Some)
    };
    // √(10 + b√5) ÷ 4.
    let nested = |b: i64| {
        let inside = Value::integer(10).plus(&sqrt(5)?.scaled(&integer(b))?, fuel)?;
        root(&inside, 2, fuel)?.scaled(&integer(4).recip()).map(Some)
    };
    match degrees {
        0 => Ok(Some(Value::zero())),
        15 => sum(6, -1, 2, 4),
        18 => sum(5, -1, 1, 4),
        30 => sum(1, 0, 1, 2),
        36 => nested(-2),
        45 => sum(2, 0, 1, 2),
        54 => sum(5, 1, 1, 4),
        60 => sum(3, 0, 1, 2),
        72 => nested(2),
        75 => sum(6, 1, 2, 4),
        90 => Ok(Some(Value::one())),
        _ => Ok(None),
    }
}

/// `e^{i q π}` if its parts are known exactly.
pub fn cis(half_turns: &Rational, fuel: &Fuel) -> Checked<Option<Value>> {
    let (cos, sin) = (cos_of_half_turns(half_turns, fuel)?, sin_of_half_turns(half_turns, fuel)?);
    let opaque = |value: &Value| {
        let is_sine = |generator: &_| matches!(generator, Generator::Function(Function::Sin, _));
        value.generators().any(is_sine)
    };
    if opaque(&cos) || opaque(&sin) {
        return Ok(None);
    }
    let imaginary = sin.times(&Value::from(Generator::Imaginary), fuel)?;
    cos.plus(&imaginary, fuel).map(Some)
}

/// Inverse and hyperbolic functions: exact at 0 only.
pub fn other(function: Function, argument: &Value) -> Value {
    let zero_at_zero = matches!(function, Function::Arcsin | Function::Arctan | Function::Sinh);
    if zero_at_zero && argument.is_zero() {
        return Value::zero();
    }
    if function == Function::Cosh && argument.is_zero()
        || function == Function::Arccos && *argument == Value::one()
    {
        return if function == Function::Cosh { Value::one() } else { Value::zero() };
    }
    opaque(function, argument)
}

pub fn abs(value: &Value, fuel: &Fuel) -> Checked<Value> {
    if let Some(rational) = value.rational() {
        return Ok(Value::from(rational.abs()));
    }
    if value.is_open() {
        return Ok(opaque(Function::Abs, &without_sign(value).1));
    }
    if value.generators().any(|generator| *generator == Generator::Imaginary) {
        return modulus(value, fuel);
    }
    let real = numeric::real(value).ok_or(Unsupported("the sign of a value is not known"))?;
    Ok(if real < 0.0 { value.negated() } else { value.clone() })
}

/// `√(a² + b²)` of a complex number.
fn modulus(value: &Value, fuel: &Fuel) -> Checked<Value> {
    let polynomial = value.polynomial().ok_or(Unsupported("a modulus is not supported"))?;
    let (mut real, mut imaginary) = (Value::zero(), Value::zero());
    for (monomial, coefficient) in polynomial.terms() {
        let mut monomial = monomial.clone();
        let part = if monomial.remove(&Generator::Imaginary).is_some() {
            &mut imaginary
        } else {
            &mut real
        };
        let is_real = |generator: &_| matches!(generator, Generator::Prime(_) | Generator::Pi);
        if !monomial.keys().all(is_real) {
            return Err(Unsupported("a modulus is not supported"));
        }
        *part = part.plus(&Value::from(Poly::term(coefficient.clone(), monomial)), fuel)?;
    }
    let square = real.times(&real, fuel)?.plus(&imaginary.times(&imaginary, fuel)?, fuel)?;
    root(&square, 2, fuel)
}

fn whole(value: &Value) -> Option<BigInt> {
    value.rational().filter(Rational::is_integer).map(|value| value.to_integer())
}

pub fn factorial(value: &Value, fuel: &Fuel) -> Checked<Value> {
    if value.is_open() {
        return Ok(opaque(Function::Factorial, value));
    }
    let number = whole(value).and_then(|value| value.to_u32());
    let number = number.filter(|number| *number <= MAX_FACTORIAL).ok_or(TOO_LARGE)?;
    fuel.spend(u64::from(number))?;
    Ok(Value::from(Rational::from_integer((1..=number).map(BigInt::from).product())))
}

pub fn binomial(above: &Value, below: &Value, fuel: &Fuel) -> Checked<Value> {
    if above.is_open()
        && let Some(k) = whole(below).and_then(|k| k.to_u32()).filter(|k| *k <= MAX_EXPANDED)
    {
        // n (n − 1) … (n − k + 1) ÷ k!
        let mut product = Value::one();
        for (index, divisor) in (0..i64::from(k)).zip(1..) {
            let factor = above.minus(&Value::integer(index), fuel)?;
            product = product.times(&factor, fuel)?.scaled(&integer(divisor).recip())?;
        }
        return Ok(product);
    }
    if above.is_open() || below.is_open() {
        let arguments = vec![above.clone(), below.clone()];
        return Ok(Value::from(Generator::Function(Function::Binomial, arguments)));
    }
    let number = |value: &Value| {
        whole(value).and_then(|value| value.to_u32()).filter(|value| *value <= MAX_FACTORIAL)
    };
    let (Some(n), Some(k)) = (number(above), number(below)) else { return Err(TOO_LARGE) };
    fuel.spend(u64::from(n))?;
    if k > n {
        return Ok(Value::zero());
    }
    let product =
        |numbers: std::ops::RangeInclusive<u32>| -> BigInt { numbers.map(BigInt::from).product() };
    let rest = n.saturating_sub(k).saturating_add(1);
    let value = product(rest..=n).checked_div(&product(1..=k)).ok_or(UNDEFINED)?;
    Ok(Value::from(Rational::from_integer(value)))
}

/// Largest whole number up to the value, or smallest whole number from the value.
pub fn rounded(value: &Value, up: bool) -> Checked<Value> {
    if let Some(value) = value.rational() {
        return Ok(Value::from(if up { value.ceil() } else { value.floor() }));
    }
    let unknown = Unsupported("a rounded value is not known");
    let real = numeric::real(value).filter(|real| real.abs() < MAX_ROUNDED).ok_or(unknown)?;
    if (real - real.round()).abs() < MIN_FRACTION {
        return Err(unknown);
    }
    Ok(Value::integer((if up { real.ceil() } else { real.floor() }) as i64))
}

/// Greatest common divisor or least common multiple of whole numbers.
pub fn divisor_or_multiple(
    left: &Value,
    right: &Value,
    multiple: bool,
    fuel: &Fuel,
) -> Checked<Value> {
    let (Some(a), Some(b)) = (whole(left), whole(right)) else {
        return Err(Unsupported("gcd and lcm of values that are not whole"));
    };
    fuel.spend(left.work().saturating_mul(right.work()))?;
    let result = if multiple { a.lcm(&b) } else { a.gcd(&b) };
    if result.bits() > MAX_BITS {
        return Err(TOO_LARGE);
    }
    Ok(Value::from(Rational::from_integer(result)))
}
