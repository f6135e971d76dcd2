//! The quick start's model and data, with fewer rows.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::files::workspace;
use crate::process::run;

/// Files of rows that jobs of tests read.
const FILES: [&str; 3] = ["teacher.jsonl", "train.jsonl", "pairs.jsonl"];

/// Creates the quick start's model folder and data in `folder`, with the first `rows` rows of each
/// file to train on. A coordinator without optimizations takes ten seconds to open all 128,000
/// rows of the teacher.
///
/// # Errors
/// Python or a file operation fails.
pub fn generate(folder: &Path, rows: usize) -> Result<()> {
    let program = workspace().join("manifests/samples/quickstart/make_data.py");
    run(Command::new("python3").arg(program).arg(folder))?;
    for name in FILES {
        let path = folder.join(name);
        let failed = || format!("failed to shorten {}", path.display());
        let text = fs::read_to_string(&path).with_context(failed)?;
        let kept: String = text.split_inclusive('\n').take(rows).collect();
        fs::write(&path, kept).with_context(failed)?;
    }
    Ok(())
}
