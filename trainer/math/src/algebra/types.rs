//! The types of the algebra, which contain each other: a value has polynomials, whose monomials
//! have generators, whose functions have values.

use std::collections::BTreeMap;

use num_bigint::BigUint;
use num_rational::Ratio;

use crate::algebra::Rational;

pub type Exponent = Ratio<i64>;
pub type Monomial = BTreeMap<Generator, Exponent>;

/// A factor of a monomial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generator {
    /// A number above 1 without a known factor; its exponent is between 0 and 1.
    Prime(BigUint),
    /// i; its exponent is 1.
    Imaginary,
    Pi,
    Euler,
    /// `1 ÷ ln b` for the unspecified base b of `\log`.
    LogBase,
    /// Natural logarithm of a [`Generator::Prime`].
    Ln(BigUint),
    /// A prime or e to the power of a monomial: `2^n`, `e^{xy}`.
    Power(Box<Generator>, Monomial),
    Function(Function, Vec<Value>),
    Variable(String),
}

/// Functions without an exact value for most arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    Root(u32),
    Ln,
    Sin,
    Cos,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Abs,
    Factorial,
    Binomial,
    /// Base and exponent.
    Power,
    /// `f(x)` of an unknown function.
    Named(String),
}

/// Sum of monomials with rational coefficients.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Poly {
    pub(super) terms: BTreeMap<Monomial, Rational>,
}

/// Quotient of polynomials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    pub(super) numerator: Poly,
    /// Not zero; 1 unless it has several terms.
    pub(super) denominator: Poly,
}
