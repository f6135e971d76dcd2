//! Units of measurement with dimension and scale, number words, and words that change an answer's
//! meaning.

use std::collections::BTreeMap;

use num_traits::CheckedMul;

use crate::algebra::{Rational, integer};
use crate::limits::MAX_BITS;

/// Exponent of each dimension, and the factor to the dimension's base unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub dimensions: BTreeMap<&'static str, i32>,
    pub scale: Rational,
}

/// Names, dimension, and the scale as numerator and denominator.
type Row = (&'static [&'static str], &'static str, i64, i64);

const TABLE: [Row; 31] = [
    (&["mm", "millimeter", "millimeters"], "length", 1, 1000),
    (&["cm", "centimeter", "centimeters", "centimetre", "centimetres"], "length", 1, 100),
    (&["dm", "decimeter", "decimeters"], "length", 1, 10),
    (&["m", "meter", "meters", "metre", "metres"], "length", 1, 1),
    (&["km", "kilometer", "kilometers", "kilometre", "kilometres"], "length", 1000, 1),
    (&["in", "inch", "inches"], "length", 254, 10_000),
    (&["ft", "foot", "feet"], "length", 3048, 10_000),
    (&["yd", "yard", "yards"], "length", 9144, 10_000),
    (&["mi", "mile", "miles"], "length", 1_609_344, 1000),
    (&["mg", "milligram", "milligrams"], "mass", 1, 1000),
    (&["g", "gram", "grams"], "mass", 1, 1),
    (&["kg", "kilogram", "kilograms"], "mass", 1000, 1),
    (&["lb", "lbs", "pound", "pounds"], "weight", 16, 1),
    (&["oz", "ounce", "ounces"], "weight", 1, 1),
    (&["ms", "millisecond", "milliseconds"], "time", 1, 1000),
    (&["s", "sec", "secs", "second", "seconds"], "time", 1, 1),
    (&["min", "mins", "minute", "minutes"], "time", 60, 1),
    (&["h", "hr", "hrs", "hour", "hours"], "time", 3600, 1),
    (&["day", "days"], "time", 86_400, 1),
    (&["week", "weeks"], "time", 604_800, 1),
    (&["month", "months"], "months", 1, 1),
    (&["yr", "yrs", "year", "years"], "months", 12, 1),
    (&["ml", "mL", "milliliter", "milliliters"], "volume", 1, 1000),
    (&["cl", "cL"], "volume", 1, 100),
    (&["l", "L", "liter", "liters", "litre", "litres"], "volume", 1, 1),
    (&["cup", "cups"], "cups", 1, 1),
    (&["gal", "gallon", "gallons"], "gallons", 1, 1),
    (&["degree", "degrees", "deg"], "angle", 1, 1),
    (&["rad", "radian", "radians"], "radians", 1, 1),
    (&["dollar", "dollars", "USD", "bucks"], "dollars", 1, 1),
    (&["cent", "cents"], "dollars", 1, 100),
];

/// Units without a scale.
const OTHER: [&str; 12] =
    ["mph", "am", "pm", "th", "st", "nd", "rd", "pts", "pt", "kmh", "kph", "pcs"];

/// Words that multiply the number before them.
const MULTIPLIERS: [(&str, i64); 7] = [
    ("hundred", 100),
    ("thousand", 1000),
    ("million", 1_000_000),
    ("billion", 1_000_000_000),
    ("trillion", 1_000_000_000_000),
    ("dozen", 12),
    ("dozens", 12),
];

/// Words that change the meaning of a number beside them.
const OPERATORS: [&str; 58] = [
    "not",
    "no",
    "non",
    "negative",
    "minus",
    "plus",
    "times",
    "less",
    "more",
    "greater",
    "least",
    "most",
    "than",
    "between",
    "to",
    "except",
    "over",
    "under",
    "above",
    "below",
    "half",
    "double",
    "twice",
    "third",
    "quarter",
    "or",
    "and",
    "if",
    "when",
    "where",
    "mod",
    "modulo",
    "base",
    "fewer",
    "at",
    "up",
    "down",
    "until",
    "from",
    "without",
    "power",
    "squared",
    "cubed",
    "root",
    "factorial",
    "divided",
    "by",
    "false",
    "wrong",
    "incorrect",
    "never",
    "nor",
    "neither",
    "is",
    "equals",
    "quarters",
    "thirds",
    "halves",
];

/// Words before a number that do not change it.
const INTRODUCTIONS: [&str; 9] =
    ["about", "approximately", "approx", "exactly", "roughly", "the", "answer", "is", "total"];

pub fn is_known(name: &str) -> bool {
    OTHER.contains(&name) || find(name).is_some()
}

pub fn find(name: &str) -> Option<Unit> {
    let row = TABLE.iter().find(|row| row.0.contains(&name)).or_else(|| {
        let lower = name.to_lowercase();
        TABLE.iter().find(|row| lower.len() > 2 && row.0.contains(&lower.as_str()))
    })?;
    Some(Unit {
        dimensions: BTreeMap::from([(row.1, 1)]),
        scale: Rational::new(row.2.into(), row.3.into()),
    })
}

/// Units that one letter outside `\text` may abbreviate.
pub fn of_letter(name: &str) -> Option<Unit> {
    if name.len() == 1 { find(name) } else { None }
}

pub fn multiplier(word: &str) -> Option<i64> {
    let lower = word.to_lowercase();
    MULTIPLIERS.iter().find(|(name, _)| *name == lower).map(|(_, factor)| *factor)
}

pub fn is_operator(word: &str) -> bool {
    OPERATORS.contains(&word.to_lowercase().as_str())
}

pub fn is_introduction(word: &str) -> bool {
    INTRODUCTIONS.contains(&word.to_lowercase().as_str())
}

impl Unit {
    /// Product with another unit to a power; `None` if it exceeds the size limits.
    pub fn with(mut self, other: &Self, exponent: i32) -> Option<Self> {
        for (dimension, own) in &other.dimensions {
            let sum = self.dimensions.entry(dimension).or_default();
            *sum = sum.checked_add(exponent.checked_mul(*own)?)?;
        }
        self.dimensions.retain(|_, exponent| *exponent != 0);
        self.scale = self.scale.checked_mul(&other.scale.pow(exponent))?;
        let bits = self.scale.numer().bits().max(self.scale.denom().bits());
        (bits <= MAX_BITS).then_some(self)
    }

    pub fn none() -> Self {
        Self { dimensions: BTreeMap::new(), scale: integer(1) }
    }
}
