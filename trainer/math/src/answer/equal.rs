//! Equality of answers.

use crate::algebra::{Value, integer};
use crate::answer::Answer;
use crate::limits::Fuel;

impl Answer {
    /// Whether both denote the same mathematical object, as found in both directions: one may take
    /// more work than the other.
    pub fn equals(&self, other: &Self) -> bool {
        self == other
            || equal(self, other, &Fuel::default()) && equal(other, self, &Fuel::default())
    }

    /// The value of a number without unit or percent sign and without variables.
    pub(super) fn constant(&self) -> Option<Value> {
        let Self::Quantity(quantity) = self else { return None };
        let plain = quantity.unit.is_none() && !quantity.percent && !quantity.value.is_open();
        plain.then(|| quantity.value.clone())
    }

    /// Whether it contains the variable.
    pub(super) fn mentions(&self, name: &str) -> bool {
        match self {
            Self::Quantity(quantity) => quantity.value.contains(name),
            Self::Sequence { items, .. } | Self::Set(items) | Self::List(items) => {
                items.iter().any(|item| item.mentions(name))
            }
            Self::Matrix(rows) => rows.iter().flatten().any(|value| value.contains(name)),
            Self::Words(words) => words == name,
            _ => false,
        }
    }

    /// Whether it contains any variable.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Quantity(quantity) => quantity.value.is_open(),
            Self::Sequence { items, .. } | Self::Set(items) | Self::List(items) => {
                items.iter().any(Self::is_open)
            }
            Self::Matrix(rows) => rows.iter().flatten().any(Value::is_open),
            _ => false,
        }
    }
}

/// Whether both denote the same object, as found within the fuel.
pub(super) fn equal(left: &Answer, right: &Answer, fuel: &Fuel) -> bool {
    use Answer::{
        Assignments, Choice, Equation, Inequality, Infinity, List, Matrix, Named, Quantity, Ratio,
        Region, Sequence, Set, Words,
    };
    if fuel.spend(1).is_err() {
        return false;
    }
    match (left, right) {
        (Quantity(a), Quantity(b)) => a.equals(b, fuel),
        (Infinity { negative: a }, Infinity { negative: b }) => a == b,
        (Choice(a), Choice(b)) => a == b,
        (Words(a), Words(b)) => a == b,
        (Named { .. }, Assignments(_)) | (Assignments(_), Named { .. }) => false,
        (Named { .. } | Equation(_), Named { .. } | Equation(_)) => {
            same_equation(left, right, fuel)
        }
        (Named { answer, .. }, Set(_) | List(_)) | (Set(_) | List(_), Named { answer, .. })
            if matches!(answer.as_ref(), Set(_) | List(_)) =>
        {
            let other = if matches!(left, Named { .. }) { right } else { left };
            equal(answer, other, fuel)
        }
        (Set(items) | List(items), single) | (single, Set(items) | List(items))
            if matches!(single, Quantity(_) | Named { .. }) =>
        {
            matches!(items.as_slice(), [only] if equal(only, single, fuel))
        }
        (Named { answer, .. }, other) | (other, Named { answer, .. }) => equal(answer, other, fuel),
        (List(a), List(b)) => same_elements(a, b, fuel),
        (Set(a) | List(a), Set(b) | List(b)) => same_set(a, b, fuel),
        (
            Sequence { open, close, items: a },
            Sequence { open: other_open, close: other_close, items: b },
        ) => open == other_open && close == other_close && same_order(a, b, fuel),
        (List(a), Sequence { open: '(', close: ')', items: b })
        | (Sequence { open: '(', close: ')', items: a }, List(b)) => same_order(a, b, fuel),
        (Assignments(a), Assignments(b)) => same_names(a, b, fuel),
        (Assignments(a), List(b) | Sequence { open: '(', close: ')', items: b })
        | (List(b) | Sequence { open: '(', close: ')', items: b }, Assignments(a)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((_, a), b)| equal(a, b, fuel))
        }
        (Region { name: a, region: x }, Region { name: b, region: y }) => {
            (a.is_none() || b.is_none() || a == b) && x.equals(y, fuel)
        }
        (Region { region, .. }, other) | (other, Region { region, .. }) => {
            let wide = region.is_wide() || region.is_empty() || matches!(other, Set(_));
            wide && other.region(fuel).is_ok_and(|other| region.equals(&other, fuel))
        }
        (Inequality(a), Inequality(b)) => a.equals(b, fuel),
        (Matrix(a), Matrix(b)) => same_matrix(a, b, fuel),
        (Ratio(a), Ratio(b)) => same_ratio(a, b, fuel),
        _ => false,
    }
}

fn same_equation(left: &Answer, right: &Answer, fuel: &Fuel) -> bool {
    use Answer::{Equation, Named};
    if let (Named { name: a, answer: x, .. }, Named { name: b, answer: y, .. }) = (left, right)
        && a == b
        && equal(x, y, fuel)
    {
        return true;
    }
    match (left, right) {
        (
            Named { equation: Some(a), .. } | Equation(a),
            Named { equation: Some(b), .. } | Equation(b),
        ) => a.equals(b, fuel),
        _ => false,
    }
}

fn same_order(a: &[Answer], b: &[Answer], fuel: &Fuel) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b, fuel))
}

/// Whether a permutation of one is the other.
fn same_elements(a: &[Answer], b: &[Answer], fuel: &Fuel) -> bool {
    let mut rest: Vec<&Answer> = b.iter().collect();
    a.len() == b.len()
        && a.iter().all(|item| {
            let found = rest.iter().position(|other| equal(item, other, fuel));
            found.map(|at| rest.swap_remove(at)).is_some()
        })
}

fn same_set(a: &[Answer], b: &[Answer], fuel: &Fuel) -> bool {
    let within = |some: &[Answer], others: &[Answer]| {
        some.iter().all(|item| others.iter().any(|other| equal(item, other, fuel)))
    };
    within(a, b) && within(b, a)
}

fn same_names(a: &[(String, Answer)], b: &[(String, Answer)], fuel: &Fuel) -> bool {
    let found = |(name, value): &(String, Answer)| {
        b.iter().any(|(other, found)| name == other && equal(value, found, fuel))
    };
    a.len() == b.len() && a.iter().all(found)
}

fn same_matrix(a: &[Vec<Value>], b: &[Vec<Value>], fuel: &Fuel) -> bool {
    let same_row = |(a, b): (&Vec<Value>, &Vec<Value>)| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b, fuel))
    };
    a.len() == b.len() && a.iter().zip(b).all(same_row)
}

/// Whether `3:30` may be a time of day, which is not the ratio 1:10.
fn may_be_time(values: &[Value]) -> bool {
    let within = |value: &Value, low: i64, high: i64| {
        value.rational().is_some_and(|value| value >= integer(low) && value <= integer(high))
    };
    matches!(values, [hours, minutes] if within(hours, 0, 24) && within(minutes, 10, 59))
}

/// Whether all cross products with the first parts are equal.
fn same_ratio(a: &[Value], b: &[Value], fuel: &Fuel) -> bool {
    let (Some(first), Some(other)) = (a.first(), b.first()) else { return false };
    let proportional = |(a, b): (&Value, &Value)| match (a.times(other, fuel), b.times(first, fuel))
    {
        (Ok(left), Ok(right)) => left.equals(&right, fuel),
        _ => false,
    };
    if may_be_time(a) || may_be_time(b) {
        return a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b, fuel));
    }
    let zero = |values: &[Value]| values.iter().any(Value::is_zero);
    a.len() == b.len() && !zero(a) && !zero(b) && a.iter().zip(b).all(proportional)
}
