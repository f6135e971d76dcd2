//! Rows of `table.tsv`: verdict, reference answer, completion. They were the tests of the
//! coordinator's math reward before this crate existed.

use rljob_math::{Place, parse_reference, verdict};

const TABLE: &str = include_str!("table.tsv");
/// The default of `spec.rewards[].math.extract`.
const PLACES: [Place; 4] = [Place::Hashes, Place::Boxed, Place::Phrase, Place::LastNumber];

#[test]
fn every_row_of_the_table_scores_as_expected() {
    let rows: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with("# ")).collect();
    let mut wrong = Vec::new();
    for row in &rows {
        let mut columns = row.split('\t').map(|column| column.replace('⏎', "\n"));
        let (Some(expected), Some(reference), Some(completion), None) =
            (columns.next(), columns.next(), columns.next(), columns.next())
        else {
            panic!("not three columns: {row}")
        };
        let parsed = parse_reference(&reference);
        let correct = parsed.as_ref().is_ok_and(|parsed| verdict(&completion, parsed, &PLACES));
        if correct != (expected == "yes") {
            wrong.push(format!("{row}\n    reference {parsed:?}\n"));
        }
    }
    assert!(rows.len() >= 120, "{} rows", rows.len());
    assert!(
        wrong.is_empty(),
        "{} of {} rows score otherwise:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
