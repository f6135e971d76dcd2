//! Bounds on time and memory: the fuel of one parse or comparison and the sizes of values.

use std::cell::Cell;

/// Maximum length of an answer in bytes.
pub const MAX_BYTES: usize = 2048;
/// Maximum number of digits of a numeral.
pub const MAX_DIGITS: usize = 1000;
/// Maximum nesting of brackets, roots, fractions, sets and tuples.
pub const MAX_DEPTH: u32 = 24;
/// Maximum number of elements of a set, tuple, list or union.
pub const MAX_ITEMS: usize = 64;
/// Maximum number of terms of a polynomial.
pub const MAX_TERMS: usize = 256;
/// Maximum size of a numerator or denominator in bits.
pub const MAX_BITS: u64 = 8192;
/// Maximum numerator and denominator of an exponent of a variable or root.
pub const MAX_EXPONENT: i64 = 4096;
/// Work of one parse or comparison, in products of two small integers, each about 0.2 µs.
const FUEL: u64 = 50_000;

/// A text that is not fully understood; such an answer equals nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub &'static str);

impl Unsupported {
    /// Whether a text can have one meaning, although it cannot be computed. The reason of an
    /// ambiguous text ends with that word.
    pub fn is_notation(self) -> bool {
        ![TOO_LARGE, UNDEFINED, SIDES_DIFFER].contains(&self) && !self.0.ends_with("ambiguous")
    }
}

pub type Checked<T> = Result<T, Unsupported>;

pub const TOO_LARGE: Unsupported = Unsupported("the answer exceeds the size limits");
pub const SIDES_DIFFER: Unsupported = Unsupported("the sides of an equation differ");
pub const UNDEFINED: Unsupported = Unsupported("the answer has no defined value");

/// Remaining work of one parse or comparison.
#[derive(Debug)]
pub struct Fuel(Cell<u64>);

impl Default for Fuel {
    fn default() -> Self {
        Self(Cell::new(FUEL))
    }
}

impl Fuel {
    /// # Errors
    /// There is too little left; nothing can be spent afterwards.
    pub fn spend(&self, work: u64) -> Checked<()> {
        let rest = self.0.get().checked_sub(work);
        self.0.set(rest.unwrap_or_default());
        rest.map(drop).ok_or(TOO_LARGE)
    }
}
