//! Prints a verdict, `yes` or `no`, per row of the file that the argument names, in the format of
//! `tests/suite.tsv`. `make math-suites` compares them with Math-Verify's.

use std::error::Error;
use std::io::Write as _;

use rljob_math::{Place, parse_reference, verdict};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a suite")?;
    let suite = std::fs::read_to_string(path)?;
    let mut out = std::io::stdout().lock();
    for row in suite.lines().filter(|line| !line.starts_with("# ")) {
        let mut columns = row.split('\t').skip(1);
        let (Some(prediction), Some(reference)) = (columns.next(), columns.next()) else {
            return Err(format!("not a row of a suite: {row}").into());
        };
        let completion = match prediction.strip_prefix("C:") {
            Some(completion) => completion.replace('⏎', "\n"),
            None => format!("Thus $\\boxed{{{prediction}}}$."),
        };
        let equal = parse_reference(reference)
            .is_ok_and(|reference| verdict(&completion, &reference, &Place::DEFAULT));
        writeln!(out, "{}", if equal { "yes" } else { "no" })?;
    }
    Ok(())
}
