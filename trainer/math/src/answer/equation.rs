//! Canonical forms of equations and inequalities: all terms on one side, compared up to a factor.

use std::collections::BTreeMap;
use std::ops::Neg;

use crate::algebra::{Generator, Monomial, Poly, Value, numeric};
use crate::answer::region::{End, Region};
use crate::limits::{Checked, Fuel, Unsupported};

/// Coefficients by monomial of variables; the sum is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Equation {
    terms: BTreeMap<Monomial, Poly>,
}

/// `terms ⋈ 0`, with a positive first coefficient.
#[derive(Clone, Debug, PartialEq)]
pub struct Inequality {
    equation: Equation,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    NotEqual,
}

impl Order {
    pub fn new(sign: char) -> Checked<Self> {
        match sign {
            '<' => Ok(Self::Less),
            '≤' => Ok(Self::LessOrEqual),
            '>' => Ok(Self::Greater),
            '≥' => Ok(Self::GreaterOrEqual),
            '≠' => Ok(Self::NotEqual),
            _ => Err(Unsupported("a relation of two kinds is not supported")),
        }
    }

    pub fn same_direction(self, other: Self) -> bool {
        let less = |order| matches!(order, Self::Less | Self::LessOrEqual);
        let more = |order| matches!(order, Self::Greater | Self::GreaterOrEqual);
        (less(self) && less(other)) || (more(self) && more(other))
    }

    fn reversed(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            Self::NotEqual => Self::NotEqual,
        }
    }
}

impl Equation {
    /// `left = right`, multiplied by the denominators.
    pub fn new(left: &Value, right: &Value, fuel: &Fuel) -> Checked<Self> {
        Self::from_difference(&left.minus(right, fuel)?, fuel)
    }

    fn from_difference(difference: &Value, fuel: &Fuel) -> Checked<Self> {
        let poly = whole_exponents(difference.numerator(), fuel)?;
        let terms = poly.by_open_part()?;
        if !terms.keys().any(|monomial| !monomial.is_empty()) {
            return Err(Unsupported("an equation without variables is not supported"));
        }
        Ok(Self { terms })
    }

    /// Whether one is a constant multiple of the other.
    pub fn equals(&self, other: &Self, fuel: &Fuel) -> bool {
        self.factor(other, fuel).is_some()
    }

    /// The first coefficients of both if they are multiples of each other.
    fn factor<'e>(&'e self, other: &'e Self, fuel: &Fuel) -> Option<(&'e Poly, &'e Poly)> {
        if !self.terms.keys().eq(other.terms.keys()) {
            return None;
        }
        let (a, b) = (self.terms.values().next_back()?, other.terms.values().next_back()?);
        let proportional = self.terms.values().zip(other.terms.values()).all(|(x, y)| {
            let cross = |x: &Poly, y: &Poly| x.times(y, fuel).map(Value::from);
            match (cross(x, b), cross(y, a)) {
                (Ok(left), Ok(right)) => left.equals(&right, fuel),
                _ => false,
            }
        });
        proportional.then_some((a, b))
    }
}

/// Multiplies by powers of variables until no exponent is negative. Common factors remain, because
/// `x^2 = x` has more solutions than `x = 1`.
fn whole_exponents(poly: &Poly, fuel: &Fuel) -> Checked<Poly> {
    let mut factor = Monomial::new();
    for (generator, exponent) in poly.terms().flat_map(|(monomial, _)| monomial) {
        if generator.is_open() && *exponent < 0.into() {
            let needed = factor.entry(generator.clone()).or_insert(0.into());
            *needed = (*needed).max(exponent.neg());
        }
    }
    poly.times(&Poly::term(crate::algebra::integer(1), factor), fuel)
}

impl Inequality {
    pub fn new(difference: &Value, order: Order, fuel: &Fuel) -> Checked<Self> {
        let polynomial = difference
            .polynomial()
            .ok_or(Unsupported("an inequality with a quotient is not supported"))?;
        let negative = |generator: &Generator| {
            polynomial.terms().any(|(monomial, _)| {
                monomial.get(generator).is_some_and(|exponent| *exponent < 0.into())
            })
        };
        if polynomial.generators().any(|generator| generator.is_open() && negative(generator)) {
            return Err(Unsupported("an inequality with a quotient is not supported"));
        }
        let equation = Equation::from_difference(difference, fuel)?;
        let first = equation.terms.values().next_back();
        let first = first.and_then(|first| numeric::real(&Value::from(first.clone())));
        let order = match first {
            Some(first) if first < 0.0 => order.reversed(),
            Some(_) => order,
            None => return Err(Unsupported("the sign of a coefficient is not known")),
        };
        Ok(Self { equation, order })
    }

    pub fn equals(&self, other: &Self, fuel: &Fuel) -> bool {
        self.order == other.order && self.equation.equals(&other.equation, fuel)
    }
}

/// The solutions of `difference ⋈ 0` if it is linear in one variable.
pub fn solved(difference: &Value, order: Order, fuel: &Fuel) -> Checked<Option<(String, Region)>> {
    let Some(polynomial) = difference.polynomial() else { return Ok(None) };
    let mut parts = polynomial.by_open_part()?;
    let constant = parts.remove(&Monomial::new()).unwrap_or_default();
    let (Some((monomial, slope)), true) = (parts.pop_first(), parts.is_empty()) else {
        return Ok(None);
    };
    let mut factors = monomial.into_iter();
    let (Some((Generator::Variable(name), exponent)), None) = (factors.next(), factors.next())
    else {
        return Ok(None);
    };
    if exponent != 1.into() {
        return Ok(None);
    }
    let slope = Value::from(slope);
    let boundary = Value::from(constant).negated().over(&slope, fuel)?;
    let real = |value: &Value| numeric::real(value);
    let (Some(sign), Some(_)) = (real(&slope), real(&boundary)) else {
        return Err(Unsupported("an inequality with complex numbers is not supported"));
    };
    let order = if sign < 0.0 { order.reversed() } else { order };
    let end = |closed| End { value: Some(boundary.clone()), closed };
    let infinite = End { value: None, closed: false };
    let region = match order {
        Order::Less => Region::interval(infinite, end(false), fuel),
        Order::LessOrEqual => Region::interval(infinite, end(true), fuel),
        Order::Greater => Region::interval(end(false), infinite, fuel),
        Order::GreaterOrEqual => Region::interval(end(true), infinite, fuel),
        Order::NotEqual => Ok(Region::point(boundary.clone()).complement()),
    }?;
    Ok(Some((name, region)))
}
