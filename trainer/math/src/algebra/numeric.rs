//! Numeric values of constants, with a bound on cancellation.
//!
//! A difference counts as zero if it contains a function without an exact form, its terms cancel
//! to [`TOLERANCE`] of their size, and their size is at most [`MAX_SIZE`]. Doubles have an error of
//! 1e-16 of the size, so that values that agree to 10 digits count as equal.

use num_traits::ToPrimitive;

use crate::algebra::{Function, Generator, Monomial, Poly, Rational, Value};

/// Maximum ratio of a difference and its terms for equal values.
const TOLERANCE: f64 = 1e-10;
/// Maximum size of the terms of a difference.
const MAX_SIZE: f64 = 1e5;
/// Minimum ratio of a sum and its terms; smaller sums have too few correct digits.
const MIN_CONDITION: f64 = 1e-4;
/// Maximum argument of a trigonometric or exponential function.
const MAX_ARGUMENT: f64 = 500.0;

/// A complex number.
#[derive(Clone, Copy, Debug)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    fn new(re: f64, im: f64) -> Option<Self> {
        (re.is_finite() && im.is_finite()).then_some(Self { re, im })
    }

    fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    fn times(self, other: Self) -> Option<Self> {
        Self::new(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
    }

    fn real(self) -> Option<f64> {
        (self.im == 0.0).then_some(self.re)
    }

    fn power(self, exponent: f64) -> Option<Self> {
        if let Some(real) = self.real()
            && (real > 0.0 || exponent.fract() == 0.0)
        {
            return Self::new(real.powf(exponent), 0.0);
        }
        let (size, angle) = (self.size().powf(exponent), self.im.atan2(self.re) * exponent);
        Self::new(size * angle.cos(), size * angle.sin())
    }

    fn exponential(self) -> Option<Self> {
        if self.size() > MAX_ARGUMENT {
            return None;
        }
        let size = self.re.exp();
        if self.im == 0.0 {
            return Self::new(size, 0.0);
        }
        Self::new(size * self.im.cos(), size * self.im.sin())
    }
}

/// Whether a difference of two values is zero; see the module's rule.
pub fn is_zero(difference: &Value) -> bool {
    let inexact =
        |generator: &Generator| matches!(generator, Generator::Function(..) | Generator::Power(..));
    if !difference.generators().any(inexact) {
        return false;
    }
    let Some((sum, size)) = sum(difference.numerator()) else { return false };
    let Some(below) = conditioned(difference.denominator()) else { return false };
    sum.size() <= TOLERANCE * size && size <= MAX_SIZE * below.size()
}

/// The value of a real constant.
pub fn real(value: &Value) -> Option<f64> {
    evaluate(value)?.real()
}

fn evaluate(value: &Value) -> Option<Complex> {
    conditioned(value.numerator())?.times(conditioned(value.denominator())?.power(-1.0)?)
}

fn conditioned(poly: &Poly) -> Option<Complex> {
    let (sum, size) = sum(poly)?;
    (poly.is_zero() || sum.size() >= MIN_CONDITION * size).then_some(sum)
}

/// Sum of the terms and sum of their sizes.
fn sum(poly: &Poly) -> Option<(Complex, f64)> {
    let (mut sum, mut size) = (Complex { re: 0.0, im: 0.0 }, 0.0);
    for (monomial, coefficient) in poly.terms() {
        let term = term(monomial, coefficient)?;
        sum = Complex::new(sum.re + term.re, sum.im + term.im)?;
        size += term.size();
    }
    Some((sum, size))
}

fn term(monomial: &Monomial, coefficient: &Rational) -> Option<Complex> {
    let mut product = Complex::new(coefficient.to_f64()?, 0.0)?;
    for (generator, exponent) in monomial {
        let exponent = *exponent.numer() as f64 / *exponent.denom() as f64;
        product = product.times(self::generator(generator, exponent)?)?;
    }
    Some(product)
}

/// A generator to a power.
fn generator(generator: &Generator, exponent: f64) -> Option<Complex> {
    let base = match generator {
        Generator::Prime(prime) => Complex::new(prime.to_f64()?, 0.0)?,
        Generator::Imaginary => Complex { re: 0.0, im: 1.0 },
        Generator::Pi => Complex { re: std::f64::consts::PI, im: 0.0 },
        Generator::Euler => Complex { re: std::f64::consts::E, im: 0.0 },
        Generator::Ln(prime) => Complex::new(prime.to_f64()?.ln(), 0.0)?,
        Generator::Power(base, inner) => {
            let logarithm = match base.as_ref() {
                Generator::Prime(prime) => prime.to_f64()?.ln(),
                _ => 1.0,
            };
            let inner = term(inner, &crate::algebra::integer(1))?;
            return inner.times(Complex::new(logarithm * exponent, 0.0)?)?.exponential();
        }
        Generator::Function(function, arguments) => self::function(function, arguments)?,
        Generator::LogBase | Generator::Variable(_) => return None,
    };
    if *generator == Generator::Imaginary {
        return Some(base);
    }
    if exponent.to_bits() == 1.0_f64.to_bits() { Some(base) } else { base.power(exponent) }
}

fn function(function: &Function, arguments: &[Value]) -> Option<Complex> {
    let argument = real(arguments.first()?)?;
    let angle = Some(argument).filter(|argument| argument.abs() <= MAX_ARGUMENT);
    let unit = Some(argument).filter(|argument| argument.abs() <= 1.0);
    let value = match function {
        Function::Root(degree) if argument >= 0.0 => argument.powf(1.0 / f64::from(*degree)),
        Function::Ln if argument > 0.0 => argument.ln(),
        Function::Sin => angle?.sin(),
        Function::Cos => angle?.cos(),
        Function::Sinh => angle?.sinh(),
        Function::Cosh => angle?.cosh(),
        Function::Arcsin => unit?.asin(),
        Function::Arccos => unit?.acos(),
        Function::Arctan => argument.atan(),
        _ => return None,
    };
    Complex::new(value, 0.0)
}
