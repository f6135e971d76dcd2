//! Answer extraction: finds the final answer in a text and parses it.
//!
//! The first place that exists in the text decides: a box without an answer does not fall back to a
//! number elsewhere. The content of a place is parsed as a whole (`answer`). If that fails and the
//! content is a sentence without formulas, its number is the answer.

use rljob_crds::reward::AnswerPlace;

use crate::reward::math::answer::{Answer, parse};
use crate::reward::math::lex::NEGATIONS;
use crate::reward::math::number::Number;
use crate::reward::math::scan::{Numeral, numbers};

/// Interpretations of a completion's final answer; empty without an answer.
pub fn final_answer(text: &str, places: &[AnswerPlace]) -> Vec<Answer> {
    places.iter().find_map(|place| at(*place, text)).unwrap_or_default()
}

/// Interpretations of a reference answer: its marked part, else the whole text. Empty if the text
/// is not an answer.
pub fn reference_answer(text: &str) -> Vec<Answer> {
    if let Some(marked) = at(AnswerPlace::Hashes, text).or_else(|| at(AnswerPlace::Boxed, text)) {
        return marked;
    }
    let whole = parse(text);
    if !whole.is_empty() {
        return whole;
    }
    at(AnswerPlace::Phrase, text).unwrap_or_else(|| parse_or(text, only_number))
}

/// Interpretations of the content of a place; `None` if the text lacks the place.
fn at(place: AnswerPlace, text: &str) -> Option<Vec<Answer>> {
    match place {
        AnswerPlace::Hashes => hashes(text).map(|content| {
            let content = content.trim_end_matches('!');
            parse_or(boxed(content).unwrap_or(content), first_number)
        }),
        AnswerPlace::Boxed => boxed(text).map(|content| parse_or(content, only_number)),
        AnswerPlace::Phrase => phrase(text).map(|content| {
            let content = content.trim_end_matches('!');
            parse_or(boxed(content).or_else(|| formula(content)).unwrap_or(content), first_number)
        }),
        AnswerPlace::Formula => formula(text).map(|content| parse_or(content, only_number)),
        AnswerPlace::LastNumber => numbers(text).last().map(|numeral| answers(&numeral)),
    }
}

fn parse_or(content: &str, fallback: fn(&str) -> Vec<Answer>) -> Vec<Answer> {
    let whole = parse(content);
    if whole.is_empty() && is_sentence(content) { fallback(content) } else { whole }
}

/// Whether a text consists of words and numbers without formulas, negations and bounds.
fn is_sentence(text: &str) -> bool {
    let is_formula = |character: char| "\\^_=<>≤≥≠≈∈+*/|{}[]√π∞".contains(character);
    let mut words = text.split(|character: char| !character.is_alphabetic());
    let is_word = |word: &str| {
        let lower = word.to_lowercase();
        (word.chars().count() != 1 || matches!(lower.as_str(), "a" | "i"))
            && !NEGATIONS.contains(&lower.as_str())
    };
    let has_formula = text.contains(is_formula) || text.contains("--") || text.contains(" - ");
    text.contains(char::is_alphabetic) && !has_formula && words.all(is_word)
}

fn answers(numeral: &Numeral<'_>) -> Vec<Answer> {
    let answer = |value: &_| Answer::Number {
        value: Number::from(Clone::clone(value)),
        percent: numeral.percent,
    };
    numeral.value.as_ref().map(answer).into_iter().collect()
}

/// The first number if it stands alone.
fn first_number(text: &str) -> Vec<Answer> {
    numbers(text)
        .next()
        .filter(Numeral::stands_alone)
        .map_or_else(Vec::new, |numeral| answers(&numeral))
}

/// The number of a text with exactly one number that stands alone.
fn only_number(text: &str) -> Vec<Answer> {
    let mut found = numbers(text);
    match (found.next(), found.next()) {
        (Some(numeral), None) if numeral.stands_alone() => answers(&numeral),
        _ => Vec::new(),
    }
}

/// Text after the last `####` on its line.
fn hashes(text: &str) -> Option<&str> {
    let (_, rest) = text.rsplit_once("####")?;
    nonempty(rest.trim_start_matches([' ', ':', '\t']).lines().next().unwrap_or_default())
}

/// Content of the last `\boxed{…}` or `\fbox{…}`, up to its closing brace or the end of the text.
fn boxed(text: &str) -> Option<&str> {
    let command = |name: &str| text.rfind(name).map(|at| at + name.len());
    let start = command("\\boxed{").max(command("\\fbox{"))?;
    let rest = &text[start..];
    let mut depth = 1_usize;
    for (index, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return nonempty(&rest[..index]);
        }
    }
    nonempty(rest)
}

/// Text after the last `answer is` or `answer:`, up to the end of its sentence or line.
fn phrase(text: &str) -> Option<&str> {
    // ASCII lower-casing keeps byte offsets.
    let lower = text.to_ascii_lowercase();
    let start = ["answer is", "answer:", "answer**:", "answer is:"]
        .iter()
        .filter_map(|words| lower.rfind(words).map(|at| at + words.len()))
        .max()?;
    let rest = text[start..].trim_start_matches(|character: char| {
        character.is_whitespace() || matches!(character, ':' | '*' | '=')
    });
    let line = rest.lines().next().unwrap_or_default();
    let sentence = line
        .match_indices(['.', '?'])
        .map(|(at, _)| at)
        .find(|at| line[at + 1..].starts_with(char::is_whitespace));
    let sentence = &line[..sentence.unwrap_or(line.len())];
    let reason = [" because ", " since "].iter().filter_map(|word| sentence.find(word)).min();
    nonempty(&sentence[..reason.unwrap_or(sentence.len())])
}

/// The last formula between its delimiters.
fn formula(text: &str) -> Option<&str> {
    let between = |open: &str, close: &str| {
        let end = text.rfind(close)?;
        let start = text[..end].rfind(open)? + open.len();
        Some((end, nonempty(&text[start..end])?))
    };
    let (_, content) =
        [between("$$", "$$"), between("$", "$"), between("\\(", "\\)"), between("\\[", "\\]")]
            .into_iter()
            .flatten()
            .max_by_key(|(end, _)| *end)?;
    Some(content)
}

fn nonempty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}
