//! Prime factors by trial division up to a limit.

use std::iter;
use std::ops::Rem;

use num_bigint::BigUint;
use num_traits::{CheckedDiv, One, ToPrimitive, Zero};

use crate::limits::{Checked, Fuel, TOO_LARGE, UNDEFINED};

/// Largest trial divisor.
const MAX_FACTOR: u64 = 20_000;
/// Trial divisors of a 64-bit number per unit of work.
const DIVISORS: u64 = 16;
/// Maximum size of a number to factor, in bits.
const MAX_BITS: u64 = 4096;
/// Maximum size of a factor without small divisors, in bits.
const MAX_REST: u64 = 1024;

/// Factors of a positive number with their multiplicities. A factor without a divisor up to 20 000
/// may be composite; perfect powers of such a factor are found.
pub fn factors(number: &BigUint, fuel: &Fuel) -> Checked<Vec<(BigUint, u32)>> {
    fuel.spend(number.bits().saturating_sub(32).saturating_add(1))?;
    if number.is_zero() || number.bits() > MAX_BITS {
        return Err(TOO_LARGE);
    }
    let (mut rest, mut found) = (number.clone(), Vec::new());
    let mut last = 0;
    for divisor in iter::once(2).chain((3..=MAX_FACTOR).step_by(2)) {
        last = divisor;
        let square = u128::from(divisor.saturating_mul(divisor));
        if rest.is_one() || rest.to_u128().is_some_and(|rest| square > rest) {
            break;
        }
        let mut count = 0_u32;
        while (&rest).rem(divisor).is_zero() {
            rest = rest.checked_div(&divisor.into()).ok_or(UNDEFINED)?;
            count = count.saturating_add(1);
        }
        if count > 0 {
            found.push((BigUint::from(divisor), count));
        }
    }
    fuel.spend((last / DIVISORS).saturating_mul(number.bits().div_ceil(64)))?;
    if rest.bits() > MAX_REST {
        return Err(TOO_LARGE);
    }
    if !rest.is_one() {
        found.push(perfect_power(rest));
    }
    Ok(found)
}

/// Writes a number as `base ^ exponent` with the largest exponent up to 64.
fn perfect_power(number: BigUint) -> (BigUint, u32) {
    for exponent in (2..=64_u32).rev() {
        if u64::from(exponent) * 14 > number.bits() {
            continue;
        }
        let root = number.nth_root(exponent);
        if root.pow(exponent) == number {
            return (root, exponent);
        }
    }
    (number, 1)
}
