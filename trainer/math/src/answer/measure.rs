//! Reads quantities: a value, then a percent sign, a currency, a unit or words.

use num_traits::One;

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
        let (value, length) =
            parse::prefix(unsigned.as_deref().unwrap_or(tokens), notation, self.fuel)?;
        let rest = &unsigned.as_deref().unwrap_or(tokens)[length..];
        let (factor, rest) = multipliers(rest)?;
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
        if rest.len() == 1 && matches!(rest[0].kind, Kind::Sign('€' | '£' | '$')) {
            quantity.unit = if rest[0].is('$') { units::find("dollar") } else { None };
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
        factor *= integer(multiplier);
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
fn unit(tokens: &[Token]) -> Option<Unit> {
    let mut unit = Unit::none();
    let (mut at, mut sign) = (0, 1);
    while at < tokens.len() {
        let mut exponent = match tokens[at].text()? {
            "square" | "sq" => 2,
            "cubic" => 3,
            _ => 1,
        };
        at += usize::from(exponent > 1);
        let found = units::find(tokens.get(at)?.text()?)?;
        at += 1;
        if tokens.get(at).is_some_and(|token| token.is('^')) {
            (exponent, at) = unit_exponent(tokens, at + 1)?;
        }
        unit = unit.with(&found, sign * exponent);
        match tokens.get(at) {
            None => return Some(unit),
            Some(token) if token.is('/') || token.text() == Some("per") => sign = -1,
            Some(token) if token.is('*') => sign = 1,
            Some(_) => return None,
        }
        at += 1;
    }
    None
}

/// Exponent of a unit, and the position after it.
fn unit_exponent(tokens: &[Token], at: usize) -> Option<(i32, usize)> {
    let braces = tokens.get(at)?.is('{');
    let Kind::Number(digits, 0) = &tokens.get(at + usize::from(braces))?.kind else { return None };
    let exponent = digits.parse().ok().filter(|exponent| (1..=9).contains(exponent))?;
    if braces && !tokens.get(at + 2)?.is('}') {
        return None;
    }
    Some((exponent, at + if braces { 3 } else { 1 }))
}

/// Words without a meaning after a value; operators between units are allowed.
fn words_only(tokens: &[Token]) -> Checked<()> {
    let mut words = 0;
    for (at, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Text(text) if !units::is_operator(text) => words += 1,
            Kind::Sign('/' | '^') if at > 0 => {}
            Kind::Number(_, 0) if at > 0 && tokens[at - 1].is('^') => {}
            _ => return Err(Unsupported("the text after a number is not supported")),
        }
    }
    if words > MAX_WORDS { Err(SYNTAX) } else { Ok(()) }
}
