//! Judged pairs of a prediction and a reference answer (`suite.tsv`), judged by mathematics.
//!
//! No wrong answer may score; at least 98 % of the verdicts are right, and at most 2 % of the
//! references are unsupported.

use rljob_math::{Place, parse_reference, verdict};

const SUITE: &str = include_str!("suite.tsv");

struct Pair<'a> {
    equal: bool,
    completion: String,
    reference: &'a str,
    form: &'a str,
}

/// The pair of a row; `None` if the row is malformed.
fn pair(row: &'static str) -> Option<Pair<'static>> {
    let mut columns = row.split('\t');
    let equal = match columns.next()? {
        "yes" => true,
        "no" => false,
        _ => return None,
    };
    let (prediction, reference, form) = (columns.next()?, columns.next()?, columns.next()?);
    let completion = match prediction.strip_prefix("C:") {
        Some(completion) => completion.replace('⏎', "\n"),
        None => format!("Thus \\boxed{{{prediction}}}."),
    };
    columns.next().is_none().then_some(Pair { equal, completion, reference, form })
}

#[test]
fn judged_pairs() {
    let rows = SUITE.lines().filter(|line| !line.starts_with("# "));
    let pairs: Option<Vec<Pair<'_>>> = rows.map(pair).collect();
    let pairs = pairs.unwrap();
    let (mut false_positives, mut false_negatives, mut unsupported) = (Vec::new(), Vec::new(), 0);
    for Pair { equal, completion, reference, form } in &pairs {
        let parsed = parse_reference(reference);
        unsupported += usize::from(parsed.is_err());
        let found =
            parsed.as_ref().is_ok_and(|parsed| verdict(completion, parsed, &Place::DEFAULT));
        let row = format!("{form}: {completion:?} and {reference:?}");
        match (found, equal) {
            (true, false) => false_positives.push(row),
            (false, true) => false_negatives.push(row),
            _ => {}
        }
    }
    let negatives = pairs.iter().filter(|pair| !pair.equal).count();
    let right = pairs.len() - false_positives.len() - false_negatives.len();
    println!(
        "{} pairs, {negatives} unequal; {right} right; {} false positives, {} false negatives, \
         {unsupported} with an unsupported reference",
        pairs.len(),
        false_positives.len(),
        false_negatives.len(),
    );
    println!("false negatives:\n{}", false_negatives.join("\n"));
    assert!(pairs.len() >= 600 && 3 * negatives >= pairs.len());
    assert!(false_positives.is_empty(), "false positives:\n{}", false_positives.join("\n"));
    assert!(100 * right >= 98 * pairs.len(), "{right} of {} are right", pairs.len());
    assert!(100 * unsupported <= 2 * pairs.len(), "{unsupported} references are unsupported");
}
