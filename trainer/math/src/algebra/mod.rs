//! Exact arithmetic: quotients of polynomials over generators with rational coefficients.
//!
//! ```text
//!  Value = Poly ÷ Poly      Poly = Σ rational × Monomial      Monomial = Π Generator ^ exponent
//! ```
//!
//! Generators are variables, π, e, i, prime bases with exponents between 0 and 1 (`√2`, `∛5`),
//! logarithms of primes, and functions of values. Two values are equal if the difference of their
//! cross products has no terms. That is sound for all generators, and complete for roots of
//! rationals and variables.

pub mod elementary;
mod generator;
pub mod numeric;
mod poly;
pub mod power;
pub mod primes;
pub mod roots;
mod types;
mod value;

pub use types::{Exponent, Function, Generator, Monomial, Poly, Value};

pub type Rational = num_rational::BigRational;

pub fn integer(value: i64) -> Rational {
    Rational::from_integer(value.into())
}

#[cfg(test)]
mod tests {
    use super::{Rational, Value, integer, power, roots};
    use crate::limits::Fuel;

    fn root(value: i64, degree: u32) -> Value {
        roots::root(&Value::integer(value), degree, &Fuel::default()).unwrap()
    }

    fn times(left: &Value, right: &Value) -> Value {
        left.times(right, &Fuel::default()).unwrap()
    }

    fn power_of(base: &Value, above: i64, below: i64) -> Option<Value> {
        let exponent = Value::from(Rational::new(above.into(), below.into()));
        power::power(base, &exponent, &Fuel::default()).ok()
    }

    #[test]
    fn roots_have_a_canonical_form() {
        assert_eq!(root(8, 2), times(&Value::integer(2), &root(2, 2)));
        assert_eq!(root(9, 2), Value::integer(3));
        assert_eq!(root(-8, 3), Value::integer(-2));
        assert_eq!(times(&root(6, 2), &root(10, 2)), times(&Value::integer(2), &root(15, 2)));
        assert_eq!(times(&root(2, 3), &root(4, 3)), Value::integer(2));
        assert_eq!(times(&root(2, 2), &root(2, 3)), power_of(&Value::integer(2), 5, 6).unwrap());
        // The square of a prime above the trial divisors is found.
        assert_eq!(root(2 * 99_991 * 99_991, 2), times(&root(2, 2), &Value::integer(99_991)));
        assert_eq!(times(&root(-1, 2), &root(-1, 2)), Value::integer(-1));
    }

    #[test]
    fn powers_are_exact_and_limited() {
        assert_eq!(power_of(&root(2, 2), 4, 1), Some(Value::integer(4)));
        let two_thirds = Value::from(Rational::new(2.into(), 3.into()));
        let expected = Value::from(Rational::new(9.into(), 4.into()));
        assert_eq!(power_of(&two_thirds, -2, 1), Some(expected));
        assert_eq!(power_of(&Value::zero(), -1, 1), None);
        assert_eq!(power_of(&Value::zero(), 0, 1), None);
        assert_eq!(power_of(&Value::integer(2), i64::from(i32::MAX), 1), None);
    }

    #[test]
    fn a_quotient_that_is_rational_is_reduced() {
        let fuel = Fuel::default();
        let below = Value::one().plus(&root(2, 2), &fuel).unwrap();
        let above = below.scaled(&integer(2)).unwrap();
        assert_eq!(above.over(&below, &fuel).unwrap(), Value::integer(2));
        assert!(above.over(&Value::zero(), &fuel).is_err());
    }

    #[test]
    fn close_values_are_not_equal() {
        let fuel = Fuel::default();
        let nested = |value: &Value| roots::root(value, 2, &Fuel::default()).unwrap();
        let inner = Value::one().plus(&root(2, 3), &fuel).unwrap();
        let value = nested(&inner);
        let tiny = Value::from(Rational::new(1.into(), 10_i64.pow(15).into()));
        assert!(!value.equals(&value.plus(&tiny, &fuel).unwrap(), &fuel));
        let large = |value: &Value, more: i64| {
            let scaled = value.scaled(&integer(10_i64.pow(15))).unwrap();
            scaled.plus(&Value::integer(more), &Fuel::default()).unwrap()
        };
        let other = nested(&inner.scaled(&integer(4)).unwrap());
        assert!(!large(&value, 1).equals(&large(&other, 0), &fuel));
    }
}
