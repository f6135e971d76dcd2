//! Lists: elements separated by commas, semicolons, `and` and `or`.

use crate::answer::split::{is_thousands, parts, positions, trimmed};
use crate::answer::{Answer, Parser};
use crate::lex::{Kind, Token};
use crate::limits::{Checked, MAX_ITEMS, TOO_LARGE, Unsupported};

/// Separator between two elements.
#[derive(Clone, Copy, PartialEq)]
enum Separator {
    Comma,
    And,
    Or,
}

fn separator(token: &Token) -> Option<Separator> {
    match &token.kind {
        Kind::Sign(',' | ';') => Some(Separator::Comma),
        Kind::Text(text) if text == "and" => Some(Separator::And),
        Kind::Text(text) if text == "or" => Some(Separator::Or),
        _ => None,
    }
}

impl<'a> Parser<'a> {
    /// Elements and the strongest separator between them.
    fn split(self, tokens: &'a [Token]) -> Checked<(Vec<&'a [Token]>, Option<Separator>)> {
        let thousands = self.notation().thousands;
        let found = positions(tokens, |at, token| {
            separator(token).is_some() && !(thousands && token.is(',') && is_thousands(tokens, at))
        });
        let mut kinds: Vec<Separator> =
            found.iter().filter_map(|&at| separator(tokens.get(at)?)).collect();
        kinds.sort_by_key(|kind| *kind as u8);
        let strongest = kinds.last().copied();
        if kinds.contains(&Separator::And) && kinds.contains(&Separator::Or) {
            return Err(Unsupported("a list with both `and` and `or` is not supported"));
        }
        let elements = parts(tokens, &found);
        let last = elements.len().saturating_sub(1);
        // In "1, 2, and 3" the part before `and` is empty.
        let kept = elements.into_iter().enumerate().filter(|(at, part)| {
            !part.is_empty()
                || *at == 0
                || *at == last
                || found.get(*at).and_then(|at| tokens.get(*at)?.text()).is_none()
        });
        let elements: Vec<&[Token]> = kept.map(|(_, part)| part).collect();
        if elements.len() > MAX_ITEMS { Err(TOO_LARGE) } else { Ok((elements, strongest)) }
    }

    pub(super) fn list(self, tokens: &'a [Token]) -> Checked<Answer> {
        let (elements, separator) = self.split(tokens)?;
        if let [only] = elements.as_slice() {
            return self.item(only);
        }
        let items = self.each(&elements)?;
        combined(items, separator, self)
    }

    fn each(self, elements: &[&'a [Token]]) -> Checked<Vec<Answer>> {
        elements.iter().map(|element| self.item(trimmed(element))).collect()
    }

    /// Elements in brackets.
    pub(super) fn elements(self, tokens: &'a [Token]) -> Checked<Vec<Answer>> {
        self.each(&self.split(tokens)?.0)
    }
}

/// A list of elements: regions joined by `and` or `or`, assignments by name, or plain elements.
fn combined(
    items: Vec<Answer>,
    separator: Option<Separator>,
    parser: Parser<'_>,
) -> Checked<Answer> {
    let is_text = |item: &Answer| matches!(item, Answer::Words(_));
    if items.iter().any(is_text) && !items.iter().all(is_text) {
        return Err(Unsupported("a list of words and values is not supported"));
    }
    if let Some(region) = joined_regions(&items, separator, parser)? {
        return Ok(region);
    }
    let names: Vec<&str> = items
        .iter()
        .filter_map(
            |item| if let Answer::Named { name, .. } = item { Some(name.as_str()) } else { None },
        )
        .collect();
    let Some(first) = names.first().map(|name| (*name).to_owned()) else {
        return Ok(Answer::List(items));
    };
    let leads = matches!(items.first(), Some(Answer::Named { .. }));
    let plain = |item: &Answer| matches!(item, Answer::Quantity(_) | Answer::Named { .. });
    // `x = 1, 2` and `x = 1 or x = 2` are values of one name.
    if leads && names.iter().all(|name| *name == first) && items.iter().all(plain) {
        let values = items.into_iter().map(|item| unnamed(item).1).collect();
        let answer = Box::new(Answer::List(values));
        return Ok(Answer::Named { name: first, answer, equation: None });
    }
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() == items.len() && separator != Some(Separator::Or) {
        let values = items.into_iter().map(unnamed);
        return Ok(Answer::Assignments(
            values.map(|(name, value)| (name.unwrap_or_default(), value)).collect(),
        ));
    }
    Ok(Answer::List(items))
}

fn unnamed(item: Answer) -> (Option<String>, Answer) {
    match item {
        Answer::Named { name, answer, .. } => (Some(name), *answer),
        other => (None, other),
    }
}

/// `x < 1 or x > 2` as one region.
fn joined_regions(
    items: &[Answer],
    separator: Option<Separator>,
    parser: Parser<'_>,
) -> Checked<Option<Answer>> {
    let [Answer::Region { name, region }, others @ ..] = items else { return Ok(None) };
    if !matches!(separator, Some(Separator::And | Separator::Or)) {
        return Ok(None);
    }
    let mut joined = region.clone();
    for item in others {
        let Answer::Region { name: other, region } = item else { return Ok(None) };
        if other != name {
            return Ok(None);
        }
        joined = if separator == Some(Separator::Or) {
            joined.union(region, parser.fuel)?
        } else {
            joined.intersection(region, parser.fuel)?
        };
    }
    Ok(Some(Answer::Region { name: name.clone(), region: joined }))
}
