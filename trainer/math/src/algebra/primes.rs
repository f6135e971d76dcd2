//! Prime factors by trial division up to a limit.

use num_bigint::BigUint;
use num_traits::{One, ToPrimitive, Zero};

use crate::limits::{Checked, Fuel, TOO_LARGE};

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
    fuel.spend(1 + number.bits().saturating_sub(32))?;
    if number.is_zero() || number.bits() > MAX_BITS {
        return Err(TOO_LARGE);
    }
    let (mut rest, mut found) = (number.clone(), Vec::new());
    let mut divisor = 2_u64;
    while divisor <= MAX_FACTOR && !rest.is_one() {
        if rest.to_u128().is_some_and(|rest| u128::from(divisor * divisor) > rest) {
            break;
        }
        let mut count = 0;
        while (&rest % divisor).is_zero() {
            rest /= divisor;
            count += 1;
        }
        if count > 0 {
            found.push((BigUint::from(divisor), count));
        }
        divisor += if divisor == 2 { 1 } else { 2 };
    }
    fuel.spend(divisor / DIVISORS * (1 + number.bits() / 64))?;
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
