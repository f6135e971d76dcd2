//! Reads quantities: a value, then a percent sign, a currency, a unit or words.

use num_traits::{CheckedMul, One};

use crate::algebra::{Generator, Rational, Value, integer};
use crate::answer::quantity::Quantity;
use crate::answer::{Answer, Parser};
use crate::lex::{Kind, Token};
use crate::limits::{Checked, Unsupported};
use crate::parse::{self, Notation, SYNTAX};
use crate::units::{self, Unit};

/// Maximum number of words after a value.
const MAX_WORDS: usize = 6;

impl Parser<'_> {
    pub(super) fn quantity(self, tokens: &[Token]) -> Checked<Answer> {
        if tokens.iter().any(|token| matches!(token.kind, Kind::Sign('±' | '∓'))) {
            let reading = |lower| {
                let notation = Notation { lower, ..self.notation() };
                self.quantity_in(tokens, notation).map(|value| Answer::Quantity(Box::new(value)))
            };
            return Ok(Answer::Set(vec![reading(false)?, reading(true)?]));
        }
        self.quantity_in(tokens, self.notation()).map(|value| Answer::Quantity(Box::new(value)))
    }

    fn quantity_in(self, tokens: &[Token], notation: Notation) -> Checked<Quantity> {
        let (currency, unsigned) = currency(tokens);
        let tokens = unsigned.as_deref().unwrap_or(tokens);
        let (value, length) = parse::prefix(tokens, notation, self.fuel)?;
        let (factor, rest) = multipliers(tokens.get(length..).unwrap_or_default())?;
        let mut quantity = Quantity::plain(value.scaled(&factor)?);
        quantity.unit = currency;
        quantity.metric = if rest.is_empty() { metric(&quantity.value) } else { None };
        let rest = match rest {
            [percent, rest @ ..]
                if percent.is('%') || percent.text().is_some_and(|text| text == "percent") =>
            {
                quantity.percent = true;
                rest
            }
            [degree] if degree.is('°') => {
                quantity.unit = units::find("degree");
                return Ok(quantity);
            }
            rest => rest,
        };
        if rest.is_empty() {
            return Ok(quantity);
        }
        if let [sign] = rest
            && matches!(sign.kind, Kind::Sign('€' | '£' | '$'))
        {
            quantity.unit = if sign.is('$') { units::find("dollar") } else { None };
            return Ok(quantity);
        }
        let unit =
            unit(rest).map_or_else(|| words_only(rest).map(|()| None), |unit| Ok(Some(unit)))?;
        match (&quantity.unit, unit) {
            (Some(own), Some(other)) if *own != other => {
                return Err(Unsupported("a quantity with two units is not supported"));
            }
            (None, unit) => quantity.unit = unit,
            _ => {}
        }
        Ok(quantity)
    }
}

/// Unit of a leading currency sign, and the tokens without it.
fn currency(tokens: &[Token]) -> (Option<Unit>, Option<Vec<Token>>) {
    let is_currency = |token: &Token| matches!(token.kind, Kind::Sign('$' | '€' | '£'));
    let at = match tokens {
        [first, ..] if is_currency(first) => 0,
        [sign, second, ..] if sign.is('-') && is_currency(second) => 1,
        _ => return (None, None),
    };
    let mut rest = tokens.to_vec();
    let sign = rest.remove(at);
    (if sign.is('$') { units::find("dollar") } else { None }, Some(rest))
}

/// Product of number words such as `million`, and the tokens after them.
fn multipliers(mut tokens: &[Token]) -> Checked<(Rational, &[Token])> {
    let mut factor = Rational::one();
    for _ in 0..3 {
        let [first, rest @ ..] = tokens else { break };
        let Some(multiplier) = first.text().and_then(units::multiplier) else { break };
        factor = factor.checked_mul(&integer(multiplier)).ok_or(SYNTAX)?;
        tokens = rest;
    }
    if tokens.iter().any(|token| token.text().and_then(units::multiplier).is_some()) {
        return Err(SYNTAX);
    }
    Ok((factor, tokens))
}

/// A product of a number and a letter that abbreviates a unit.
fn metric(value: &Value) -> Option<(Value, Unit)> {
    let (monomial, coefficient) = value.polynomial()?.single_term()?;
    let mut factors = monomial.iter();
    let (Some((Generator::Variable(name), exponent)), None) = (factors.next(), factors.next())
    else {
        return None;
    };
    let unit = units::of_letter(name).filter(|_| exponent.is_one())?;
    Some((Value::from(coefficient.clone()), unit))
}

/// `cm`, `cm^2`, `square cm`, `km/h`, `miles per hour`; `None` if a name is unknown.
fn unit(mut tokens: &[Token]) -> Option<Unit> {
    let (mut unit, mut sign) = (Unit::none(), 1_i32);
    while let [first, rest @ ..] = tokens {
        let (mut exponent, named) = match first.text()? {
            "square" | "sq" => (2, rest),
            "cubic" => (3, rest),
            _ => (1, tokens),
        };
        let (name, rest) = named.split_first()?;
        tokens = rest;
        if let [caret, rest @ ..] = rest
            && caret.is('^')
        {
            (exponent, tokens) = unit_exponent(rest)?;
        }
        unit = unit.with(&units::find(name.text()?)?, sign.checked_mul(exponent)?)?;
        let Some((operator, rest)) = tokens.split_first() else { return Some(unit) };
        sign = match operator {
            token if token.is('/') || token.text() == Some("per") => -1,
            token if token.is('*') => 1,
            _ => return None,
        };
        tokens = rest;
    }
    None
}

/// Exponent of a unit, and the tokens after it.
fn unit_exponent(tokens: &[Token]) -> Option<(i32, &[Token])> {
    let (digits, rest) = match tokens {
        [open, Token { kind: Kind::Number(digits, 0), .. }, close, rest @ ..]
            if open.is('{') && close.is('}') =>
        {
            (digits, rest)
        }
        [Token { kind: Kind::Number(digits, 0), .. }, rest @ ..] => (digits, rest),
        _ => return None,
    };
    let exponent = digits.parse().ok().filter(|exponent| (1..=9).contains(exponent))?;
    Some((exponent, rest))
}

/// Words without a meaning after a value; operators between units are allowed.
fn words_only(tokens: &[Token]) -> Checked<()> {
    let (mut words, mut before) = (0_usize, None::<&Token>);
    for token in tokens {
        match (&token.kind, before) {
            (Kind::Text(text), _) if !units::is_operator(text) => words = words.saturating_add(1),
            (Kind::Sign('/' | '^'), Some(_)) => {}
            (Kind::Number(_, 0), Some(before)) if before.is('^') => {}
            _ => return Err(Unsupported("the text after a number is not supported")),
        }
        before = Some(token);
    }
    if words > MAX_WORDS { Err(SYNTAX) } else { Ok(()) }
}
