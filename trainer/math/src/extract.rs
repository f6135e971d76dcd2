//! Answer extraction: finds the final answer in a text.
//!
//! The first place that exists in the text decides: a box without an answer does not fall back to a
//! number elsewhere. The content of a place is parsed as a whole. After `####` and `answer is` an
//! explanation may follow (`18, because …`).

use num_rational::BigRational;

use crate::answer::{Answer, parse};
use crate::limits::{Checked, Unsupported};
use crate::places::Place;
use crate::scan::{Numeral, numbers};
use crate::units;

/// Words that start an explanation after an answer.
const EXPLANATIONS: [&str; 7] =
    [" because", ", since", ", as ", ", which", ", so", " out of", ", not "];
/// Maximum number of boxes that are read as a list.
const MAX_BOXES: usize = 16;

/// Interpretations of a text's final answer.
pub type Interpretations = Checked<Vec<Answer>>;

/// Interpretations of a completion's final answer.
pub fn final_answer(text: &str, places: &[Place]) -> Interpretations {
    let found = places.iter().find_map(|place| at(*place, text));
    found.unwrap_or(Err(Unsupported("the completion has no final answer")))
}

/// Interpretations of a reference answer: its marked part, also with earlier boxes as a list, else
/// the whole text.
pub fn reference_answer(text: &str) -> Interpretations {
    if let Some(marked) = at(Place::Hashes, text).or_else(|| at(Place::Boxed, text)) {
        let mut found = marked?;
        found.extend(boxed_list(text, &[Place::Hashes, Place::Boxed]));
        return Ok(found);
    }
    computed(parse(text)).or_else(|whole| at(Place::Phrase, text).unwrap_or(whole))
}

/// The marked part of a reference answer, else the whole text.
pub fn reference_text(text: &str) -> &str {
    let marked = hashes(text).map(|content| boxed(content).unwrap_or(content));
    marked.or_else(|| boxed(text)).unwrap_or(text)
}

/// All boxes of a completion as one list, if boxes are its first place and there are several.
pub fn boxed_list(text: &str, places: &[Place]) -> Option<Answer> {
    let first = places.iter().find(|place| at(**place, text).is_some())?;
    if *first != Place::Boxed {
        return None;
    }
    let boxes = boxes(text);
    if !(2..=MAX_BOXES).contains(&boxes.len()) {
        return None;
    }
    parse(&boxes.join(", ")).ok()?.into_iter().next()
}

/// The content of a place; `None` if the text lacks the place.
fn at(place: Place, text: &str) -> Option<Interpretations> {
    match place {
        Place::Hashes => hashes(text).map(|content| explained(boxed(content).unwrap_or(content))),
        Place::Boxed => boxed(text).map(parse),
        Place::Phrase => phrase(text).map(|content| explained(boxed(content).unwrap_or(content))),
        Place::Formula => formula(text).map(parse),
        Place::LastNumber => numbers(text).last().map(|numeral| number(&numeral)),
    }
}

/// Parses a text, or the part before an explanation or after an introduction.
fn explained(content: &str) -> Interpretations {
    computed(parse(content)).or_else(|whole| {
        let lower = content.to_ascii_lowercase();
        let end = EXPLANATIONS.iter().filter_map(|words| lower.find(words)).min();
        let before = end.and_then(|end| content.get(..end));
        // `The answer: the largest number is 5`.
        let after = content.rsplit_once(" is ").map(|(_, after)| after);
        let found =
            [before, after].into_iter().flatten().find_map(|part| computed(parse(part)).ok());
        found.map_or(whole, Ok)
    })
}

/// Interpretations that can be computed; else they are the error.
fn computed(found: Interpretations) -> Result<Vec<Answer>, Interpretations> {
    match found {
        Ok(answers) if !matches!(answers.as_slice(), [Answer::Notation(_)]) => Ok(answers),
        other => Err(other),
    }
}

/// The last number of a text with its unit.
fn number(numeral: &Numeral<'_>) -> Interpretations {
    let value: &BigRational =
        numeral.value.as_ref().ok_or(Unsupported("a number exceeds the size limits"))?;
    if !numeral.stands_alone() {
        return Err(Unsupported("the last number is part of a formula"));
    }
    let percent = if numeral.percent { "\\%" } else { "" };
    let number = |unit: &str| {
        parse(&format!("\\frac{{{}}}{{{}}}{percent} {unit}", value.numer(), value.denom()))
    };
    let after = numeral.after.trim_start_matches(['$', '*']);
    let mut words = after.split(|character: char| !character.is_alphanumeric());
    let word = if after.starts_with(' ') || after.starts_with(char::is_alphabetic) {
        words.find(|word| !word.is_empty())
    } else {
        None
    };
    match word.filter(|word| units::is_known(word) || units::multiplier(word).is_some()) {
        // Prose such as `5 in all` and `10 am`.
        Some("in" | "am" | "I" | "m" | "s" | "h" | "g" | "l" | "L") | None => number(""),
        Some(word) => number(&format!("\\text{{ {word}}}")),
    }
}

/// Text after the last `####` on its line.
fn hashes(text: &str) -> Option<&str> {
    let (_, rest) = text.rsplit_once("####")?;
    nonempty(rest.trim_start_matches([' ', ':', '\t']).lines().next().unwrap_or_default())
}

/// Content of the last `\boxed{…}` or `\fbox{…}`, up to its closing brace or the end of the text.
fn boxed(text: &str) -> Option<&str> {
    let after = |command: &str| text.rsplit_once(command).map(|(_, after)| after);
    let found = [after("\\boxed{"), after("\\fbox{")];
    found.into_iter().flatten().min_by_key(|after| after.len()).map(content)
}

/// Contents of all boxes that are not nested.
fn boxes(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("\\boxed{") {
        let inside = content(after);
        found.push(inside);
        rest = after.strip_prefix(inside).unwrap_or_default();
        if found.len() > MAX_BOXES {
            break;
        }
    }
    found
}

/// The text up to the brace that closes it.
fn content(text: &str) -> &str {
    let mut depth = 1_usize;
    let close = text.bytes().position(|byte| {
        depth = match byte {
            b'{' => depth.saturating_add(1),
            b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        depth == 0
    });
    close.and_then(|close| text.get(..close)).unwrap_or(text)
}

/// Text after the last `answer is` or `answer:`, up to the end of its sentence or line.
fn phrase(text: &str) -> Option<&str> {
    // ASCII lower-casing keeps byte offsets.
    let lower = text.to_ascii_lowercase();
    let start = ["answer is", "answer:", "answer**:", "answer is:"]
        .iter()
        .filter_map(|words| lower.rfind(words)?.checked_add(words.len()))
        .max()?;
    let rest = text.get(start..)?.trim_start_matches(|character: char| {
        character.is_whitespace() || matches!(character, ':' | '*' | '=')
    });
    let line = rest.lines().next().unwrap_or_default();
    let sentence = line
        .match_indices(['.', '?'])
        .filter_map(|(at, _)| line.split_at_checked(at))
        .find(|(_, end)| end.chars().nth(1).is_some_and(char::is_whitespace));
    nonempty(sentence.map_or(line, |(sentence, _)| sentence))
}

/// The last formula between its delimiters.
fn formula(text: &str) -> Option<&str> {
    let between = |open: &str, close: &str| {
        let (before, _) = text.rsplit_once(close)?;
        let (_, inside) = before.rsplit_once(open)?;
        Some((before.len(), nonempty(inside)?))
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
