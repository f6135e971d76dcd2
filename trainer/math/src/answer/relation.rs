//! Relations: assignments, equations, inequalities and membership.

use crate::answer::equal::equal;
use crate::answer::equation::{Equation, Inequality, Order, solved};
use crate::answer::split::{bracketed, parts, positions};
use crate::answer::{Answer, Parser};
use crate::lex::{Kind, Token};
use crate::limits::{Checked, SIDES_DIFFER, Unsupported};
use crate::parse;

const RELATIONS: &str = "=≈≠<>≤≥∈";

impl<'a> Parser<'a> {
    /// An element of a list.
    pub(super) fn item(self, tokens: &'a [Token]) -> Checked<Answer> {
        let found = positions(
            tokens,
            |_, token| matches!(token.kind, Kind::Sign(sign) if RELATIONS.contains(sign)),
        );
        if found.is_empty() {
            return self.shape(tokens);
        }
        let signs: Vec<char> = found
            .iter()
            .filter_map(
                |&at| if let Kind::Sign(sign) = tokens.get(at)?.kind { Some(sign) } else { None },
            )
            .collect();
        let sides = parts(tokens, &found);
        match (signs.as_slice(), sides.as_slice()) {
            (['=' | '≈'], [[], value]) => self.shape(value),
            (['∈'], [name, set]) => self.membership(name, set),
            (equals, _) if equals.iter().all(|sign| matches!(sign, '=' | '≈')) => {
                self.equation(&sides)
            }
            (orders, _) => self.inequality(orders, &sides),
        }
    }

    fn value(self, tokens: &[Token]) -> Checked<crate::algebra::Value> {
        if tokens.iter().any(|token| matches!(token.kind, Kind::Sign('±' | '∓'))) {
            return Err(Unsupported("± in a relation is not supported"));
        }
        parse::value(tokens, self.notation(), self.fuel)
    }

    /// `x ∈ set`.
    fn membership(self, name: &[Token], set: &'a [Token]) -> Checked<Answer> {
        let name = variable(name).ok_or(Unsupported("membership of an expression"))?;
        match self.deeper()?.shape(set)? {
            Answer::Region { name: None, region } => {
                Ok(Answer::Region { name: Some(name), region })
            }
            sequence @ Answer::Sequence { .. } => {
                let region = sequence.region(self.fuel)?;
                Ok(Answer::Region { name: Some(name), region })
            }
            set @ Answer::Set(_) => {
                Ok(Answer::Named { name, answer: Box::new(set), equation: None })
            }
            _ => Err(Unsupported("membership of a value that is not a set")),
        }
    }

    fn equation(self, sides: &[&'a [Token]]) -> Checked<Answer> {
        let [first, rest @ ..] = sides else { return Err(parse::SYNTAX) };
        let (Some(last), [.., _]) = (rest.last(), rest) else { return Err(parse::SYNTAX) };
        if let Some((names, values)) = assigned_tuple(first, last).filter(|_| sides.len() == 2) {
            let values = self.deeper()?.elements(values)?;
            if names.len() == values.len() {
                return Ok(Answer::Assignments(names.into_iter().zip(values).collect()));
            }
        }
        if let ([_, _], Some(argument)) = (sides, argument(last)) {
            let is_other = |token: &Token| {
                matches!(token.kind, Kind::Variable(_)) && token.kind != argument.kind
            };
            if !is_call(first) && !first.iter().any(is_other) {
                return self.equation(&[last, first]); // `2n + 1 = f(n)`
            }
        }
        if let Some(name) = variable(first).or_else(|| name(first)) {
            let answers: Vec<Answer> =
                rest.iter().map(|side| self.deeper()?.shape(side)).collect::<Checked<_>>()?;
            let Some(answer) = answers.last() else { return Err(parse::SYNTAX) };
            // `x = 2 + 3 = 5`: all values are equal.
            if !answers.iter().all(|other| equal(other, answer, self.fuel)) {
                return Err(SIDES_DIFFER);
            }
            let is_variable = variable(first).is_some();
            let equation = if is_variable { self.canonical(first, last).ok() } else { None };
            if !answer.mentions(&name) && (is_variable || !answer.is_open() || is_call(first)) {
                return Ok(Answer::Named { name, answer: Box::new(answer.clone()), equation });
            }
        }
        if sides.len() > 2 {
            return Err(Unsupported("a chain of equations is not supported"));
        }
        if let Some(name) = variable(last)
            && let Ok(value) = self.deeper()?.shape(first)
            && !value.mentions(&name)
        {
            let equation = self.canonical(first, last).ok();
            return Ok(Answer::Named { name, answer: Box::new(value), equation });
        }
        self.canonical(first, last).map(Answer::Equation)
    }

    fn canonical(self, left: &[Token], right: &[Token]) -> Checked<Equation> {
        Equation::new(&self.value(left)?, &self.value(right)?, self.fuel)
    }

    /// `a < x ≤ b`, `x ≥ a`, `x ≠ a`, or an inequality of several variables.
    fn inequality(self, signs: &[char], sides: &[&'a [Token]]) -> Checked<Answer> {
        let values: Vec<_> = sides.iter().map(|side| self.value(side)).collect::<Checked<_>>()?;
        let orders: Vec<Order> =
            signs.iter().map(|sign| Order::new(*sign)).collect::<Checked<_>>()?;
        if let ([order], [left, right]) = (orders.as_slice(), values.as_slice()) {
            let difference = left.minus(right, self.fuel)?;
            return match solved(&difference, *order, self.fuel)? {
                Some((name, region)) => Ok(Answer::Region { name: Some(name), region }),
                None => Inequality::new(&difference, *order, self.fuel).map(Answer::Inequality),
            };
        }
        let [first, second] = orders.as_slice() else {
            return Err(Unsupported("a chain of inequalities is not supported"));
        };
        if !first.same_direction(*second) {
            return Err(Unsupported("a chain of inequalities in two directions"));
        }
        let [low, middle, high] = values.as_slice() else { return Err(parse::SYNTAX) };
        let left = solved(&low.minus(middle, self.fuel)?, *first, self.fuel)?;
        let right = solved(&middle.minus(high, self.fuel)?, *second, self.fuel)?;
        match (left, right) {
            (Some((a, left)), Some((b, right))) if a == b => {
                let region = left.intersection(&right, self.fuel)?;
                if region.is_empty() {
                    return Err(Unsupported("an inequality without solutions"));
                }
                Ok(Answer::Region { name: Some(a), region })
            }
            _ => Err(Unsupported("a chain of inequalities is not supported")),
        }
    }
}

/// Name of a variable with its subscript.
fn variable(tokens: &[Token]) -> Option<String> {
    match tokens {
        [Token { kind: Kind::Variable(name), .. }] => Some(name.clone()),
        [Token { kind: Kind::Variable(_), .. }, subscript, _, ..] if subscript.is('_') => {
            let braces = tokens.len() > 3;
            (!braces || (tokens.get(2)?.is('{') && tokens.last()?.is('}')))
                .then(|| joined(tokens.iter().filter(|token| !token.is('{') && !token.is('}'))))
        }
        _ => None,
    }
}

/// `f(x)`: a letter and a token in brackets.
fn is_call(tokens: &[Token]) -> bool {
    argument(tokens).is_some()
}

/// The `x` of `f(x)`.
fn argument(tokens: &[Token]) -> Option<&Token> {
    let [Token { kind: Kind::Variable(_), .. }, rest @ ..] = tokens else { return None };
    match bracketed(rest)? {
        ('(', [argument], _) => Some(argument),
        _ => None,
    }
}

/// A name of several tokens: words, `f(2)`, `\angle ABC`, `AB`.
fn name(tokens: &[Token]) -> Option<String> {
    let upper = |token: &Token| match &token.kind {
        Kind::Variable(name) => name.chars().all(char::is_uppercase),
        _ => false,
    };
    let words = |token: &Token| token.text().is_some() || upper(token);
    let marked = match tokens {
        [Token { kind: Kind::Command("angle" | "triangle"), .. }, rest @ ..] => {
            rest.iter().all(|token| matches!(token.kind, Kind::Variable(_)))
        }
        [bar, rest @ .., other] if bar.is('|') && other.is('|') => rest.iter().all(upper),
        _ => false,
    };
    let several = tokens.len() >= 2 || tokens.iter().any(|token| token.text().is_some());
    let all_words = several && tokens.iter().all(words);
    let call = matches!(tokens, [Token { kind: Kind::Variable(_), .. }, rest @ ..]
        if bracketed(rest).is_some_and(|(open, ..)| open == '('));
    (marked || all_words || call).then(|| joined(tokens.iter()))
}

fn joined<'t>(tokens: impl Iterator<Item = &'t Token>) -> String {
    let part = |token: &Token| match &token.kind {
        Kind::Number(digits, places) if *places > 0 => format!("{digits}e-{places}"),
        Kind::Number(text, _) | Kind::Variable(text) | Kind::Letters(text) => text.clone(),
        Kind::Text(text) => format!("{} ", text.to_lowercase()),
        Kind::Sign(sign) => sign.to_string(),
        Kind::Command(name) => format!("\\{name}"),
        Kind::Symbol(name) => format!("\\{name}"),
        Kind::Begin | Kind::End => String::new(),
    };
    tokens.map(part).collect()
}

/// `(x, y) = (1, 2)`: names, and the tokens of the values.
fn assigned_tuple<'t>(left: &[Token], right: &'t [Token]) -> Option<(Vec<String>, &'t [Token])> {
    let (('(', names, ')'), ('(', values, ')')) = (bracketed(left)?, bracketed(right)?) else {
        return None;
    };
    let commas = positions(names, |_, token| token.is(','));
    let names: Option<Vec<String>> = parts(names, &commas).into_iter().map(variable).collect();
    let distinct = |names: &Vec<String>| {
        names.len() >= 2
            && names
                .iter()
                .enumerate()
                .all(|(at, name)| !names.iter().take(at).any(|other| other == name))
    };
    Some((names.filter(distinct)?, values))
}
