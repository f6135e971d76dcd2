//! SQL queries on the journal of a stopped run.

use std::path::Path;
use std::process::Command;

use rljob_crds::names::JOURNAL_FILE;
use rljob_tests::process::run;

/// Result rows of a query, one per line, in the format of `sqlite3`.
pub(crate) fn query(directory: &Path, sql: &str) -> String {
    let program = "import sqlite3, sys; print(*('|'.join(map(str, row)) for row in \
        sqlite3.connect(sys.argv[1]).execute(sys.argv[2])), sep='\\n')";
    let mut command = Command::new("python3");
    run(command.args(["-c", program]).arg(directory.join(JOURNAL_FILE)).arg(sql))
        .unwrap()
        .trim()
        .to_owned()
}
