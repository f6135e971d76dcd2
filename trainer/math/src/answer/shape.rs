//! Shapes: tuples, intervals, sets, unions, matrices, ratios, choices and words.

use crate::answer::region::{End, Region};
use crate::answer::split::{bracketed, parts, positions, trimmed};
use crate::answer::words::{choice, words};
use crate::answer::{Answer, Parser};
use crate::lex::{Kind, MID, ROW, SET_CLOSE, SET_OPEN, Token};
use crate::limits::{Checked, Fuel, MAX_ITEMS, TOO_LARGE, Unsupported};
use crate::parse;
use crate::units::is_introduction;

impl<'a> Parser<'a> {
    /// An answer without a relation.
    pub(super) fn shape(self, tokens: &'a [Token]) -> Checked<Answer> {
        let tokens = without_introduction(trimmed(tokens));
        if let Some(letter) = choice(tokens) {
            return Ok(Answer::Choice(letter));
        }
        if let Some(words) = words(tokens) {
            return Ok(Answer::Words(words));
        }
        match tokens {
            [] => return Err(Unsupported("an element is empty")),
            [only] if only.is('∅') => return Ok(Answer::Set(Vec::new())),
            [only] if only.is('ℝ') => {
                return Ok(Answer::Region { name: None, region: Region::all() });
            }
            [only] if only.is('∞') => return Ok(Answer::Infinity { negative: false }),
            [sign, only] if only.is('∞') && (sign.is('-') || sign.is('+')) => {
                return Ok(Answer::Infinity { negative: sign.is('-') });
            }
            [first, inside @ .., last]
                if first.kind == Kind::Begin
                    && last.kind == Kind::End
                    && !inside
                        .iter()
                        .any(|token| matches!(token.kind, Kind::Begin | Kind::End)) =>
            {
                return self.matrix(inside);
            }
            _ => {}
        }
        let operators = positions(tokens, |at, token| is_set_operator(token, tokens, at));
        if !operators.is_empty() {
            return self.set_operations(tokens, &operators);
        }
        if let Some((open, inside, close)) = bracketed(tokens)
            && let Some(answer) = self.brackets(open, inside, close)?
        {
            return Ok(answer);
        }
        let colons = positions(tokens, |_, token| token.is(':'));
        if !colons.is_empty() {
            return self.ratio(&parts(tokens, &colons));
        }
        self.quantity(tokens)
    }

    /// A set, tuple or interval; `None` for an expression in brackets.
    fn brackets(self, open: char, inside: &'a [Token], close: char) -> Checked<Option<Answer>> {
        let inner = self.deeper()?;
        let comma = |sign: char| positions(inside, |_, token| token.is(sign)).is_empty();
        let separated = !(comma(',') && comma(';'));
        match (open, close) {
            (SET_OPEN, SET_CLOSE) if inside.is_empty() => Ok(Some(Answer::Set(Vec::new()))),
            (SET_OPEN, SET_CLOSE) => {
                if let Some(region) = inner.set_builder(inside)? {
                    return Ok(Some(region));
                }
                inner.elements(inside).map(|items| Some(Answer::Set(items)))
            }
            ('{', '}') if separated => inner.elements(inside).map(|items| Some(Answer::Set(items))),
            ('(' | '[', ')' | ']') if separated => match inner.elements(inside)? {
                items if items.len() < 2 => {
                    Err(Unsupported("a number such as (1,234) is ambiguous"))
                }
                items => Ok(Some(Answer::Sequence { open, close, items })),
            },
            // Brackets around a set, a tuple, or a number with its unit.
            ('(' | '[', ')' | ']') if is_matrix(inside) => inner.shape(inside).map(Some),
            ('(', ')') | ('{', '}') if bracketed(inside).is_some() => inner.shape(inside).map(Some),
            ('{', '}') => inner.shape(inside).map(Some),
            ('[', ']') => Err(Unsupported("a value in square brackets is not supported")),
            _ => Ok(None),
        }
    }

    /// `x | x > 5` or `x : x > 5`.
    fn set_builder(self, inside: &'a [Token]) -> Checked<Option<Answer>> {
        let [variable, bar, condition @ ..] = inside else { return Ok(None) };
        if !(bar.is('|') || bar.is(':') || bar.is(MID)) {
            return Ok(None);
        }
        let Kind::Variable(name) = &variable.kind else { return Ok(None) };
        match self.list(condition)? {
            Answer::Region { name: Some(own), region } if own == *name => {
                Ok(Some(Answer::Region { name: None, region }))
            }
            _ => Err(Unsupported("a set builder is not supported")),
        }
    }

    /// Unions, intersections and differences of sets.
    fn set_operations(self, tokens: &'a [Token], operators: &[usize]) -> Checked<Answer> {
        let inner = self.deeper()?;
        let operands: Vec<Answer> = parts(tokens, operators)
            .into_iter()
            .map(|part| inner.shape(part))
            .collect::<Checked<_>>()?;
        if operands.len() > MAX_ITEMS {
            return Err(TOO_LARGE);
        }
        let signs: Vec<char> = operators
            .iter()
            .map(|&at| match tokens.get(at).map(|token| &token.kind) {
                Some(Kind::Sign(sign)) => *sign,
                _ => '∪',
            })
            .collect();
        let all_sets = operands.iter().all(|operand| matches!(operand, Answer::Set(_)));
        if all_sets && signs.iter().all(|sign| *sign == '∪') {
            let items = operands.into_iter().flat_map(|operand| match operand {
                Answer::Set(items) => items,
                other => vec![other],
            });
            return Ok(Answer::Set(items.collect()));
        }
        if signs.iter().any(|sign| Some(sign) != signs.first()) {
            return Err(Unsupported("set operations without brackets are ambiguous"));
        }
        let mut regions = operands.iter().map(|operand| operand.region(self.fuel));
        let mut region = regions.next().ok_or(parse::SYNTAX)??;
        for (sign, other) in signs.iter().zip(regions) {
            let other = other?;
            region = match sign {
                '∩' => region.intersection(&other, self.fuel)?,
                '∖' => region.intersection(&other.complement(), self.fuel)?,
                _ => region.union(&other, self.fuel)?,
            };
        }
        Ok(Answer::Region { name: None, region })
    }

    fn matrix(self, inside: &'a [Token]) -> Checked<Answer> {
        let cut = |tokens: &'a [Token], sign: char| {
            parts(tokens, &positions(tokens, |_, token| token.is(sign)))
        };
        let mut rows = cut(inside, ROW);
        if rows.last().is_some_and(|row| row.is_empty()) {
            rows.pop();
        }
        let rows: Vec<Vec<_>> = rows
            .into_iter()
            .map(|row| {
                cut(row, '&')
                    .into_iter()
                    .map(|cell| parse::value(cell, self.notation(), self.fuel))
                    .collect()
            })
            .collect::<Checked<_>>()?;
        let width = rows.first().map_or(0, Vec::len);
        if rows.iter().any(|row| row.len() != width) {
            return Err(Unsupported("the rows of a matrix have different lengths"));
        }
        if rows.len().saturating_mul(width) > MAX_ITEMS {
            Err(TOO_LARGE)
        } else {
            Ok(Answer::Matrix(rows))
        }
    }

    fn ratio(self, parts: &[&[Token]]) -> Checked<Answer> {
        // `3:05` is a time of day.
        let is_time = |part: &&[Token]| {
            matches!(
                part,
                [Token { kind: Kind::Number(digits, _), .. }] if digits.starts_with('0')
            )
        };
        if parts.iter().any(is_time) {
            return Err(Unsupported("times of day are not supported"));
        }
        let values = parts.iter().map(|part| parse::value(part, self.notation(), self.fuel));
        Ok(Answer::Ratio(values.collect::<Checked<_>>()?))
    }
}

impl Answer {
    /// The set of reals that an answer denotes.
    pub(super) fn region(&self, fuel: &Fuel) -> Checked<Region> {
        let not_real = Unsupported("a set of reals was expected");
        match self {
            Self::Region { region, .. } => Ok(region.clone()),
            Self::Set(items) => {
                let mut region = Region::all().complement();
                for item in items {
                    let value = item.constant().ok_or(not_real)?;
                    region = region.union(&Region::point(value), fuel)?;
                }
                Ok(region)
            }
            Self::Sequence { open, close, items } => {
                let [low, high] = items.as_slice() else { return Err(not_real) };
                let end = |item: &Self, closed: bool, negative: bool| match item {
                    Self::Infinity { negative: found } if *found == negative && !closed => {
                        Ok(End { value: None, closed: false })
                    }
                    item => {
                        let value = Some(item.constant().ok_or(not_real)?);
                        Ok(End { value, closed })
                    }
                };
                let (low, high) = (end(low, *open == '[', true)?, end(high, *close == ']', false)?);
                Region::interval(low, high, fuel)
            }
            _ => Err(not_real),
        }
    }
}

fn is_matrix(tokens: &[Token]) -> bool {
    tokens.first().is_some_and(|token| token.kind == Kind::Begin)
}

fn is_set_operator(token: &Token, tokens: &[Token], at: usize) -> bool {
    let is_bracket = |index: Option<usize>, brackets: &str| {
        let token = index.and_then(|index| tokens.get(index)).map(|token| &token.kind);
        matches!(token, Some(Kind::Sign(sign)) if brackets.contains(*sign))
    };
    let letter = matches!(&token.kind, Kind::Variable(name) if name == "U")
        && is_bracket(at.checked_sub(1), ")]⟧}")
        && is_bracket(at.checked_add(1), "([⟦");
    let word = token.text() == Some("union");
    letter || word || matches!(token.kind, Kind::Sign('∪' | '∩' | '∖'))
}

fn without_introduction(mut tokens: &[Token]) -> &[Token] {
    while let [first, rest @ ..] = tokens {
        if rest.is_empty() || !first.text().is_some_and(is_introduction) {
            break;
        }
        tokens = rest;
    }
    tokens
}
