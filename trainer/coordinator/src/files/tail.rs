//! The newest step of a JSONL file, read from its end: files of long runs are never read whole.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde::Deserialize;

/// Bytes per read.
const CHUNK: u64 = 64 << 10;
/// Longest line that is parsed, in bytes. A longer one counts as malformed.
const MAX_LINE: u64 = 16 << 20;

#[derive(Deserialize)]
struct Step {
    step: u32,
}

/// Step of the last line that has one. Removes an incomplete last line.
///
/// # Errors
/// The file cannot be read or truncated.
pub fn newest_step(file: &mut File) -> io::Result<Option<u32>> {
    let mut end = line_start(file, file.metadata()?.len())?;
    file.set_len(end)?;
    while end > 0 {
        let start = line_start(file, end.saturating_sub(1))?;
        if let Some(step) = parse(file, start, end)? {
            return Ok(Some(step));
        }
        end = start;
    }
    Ok(None)
}

/// Removes the lines after `step` from the end of the file.
///
/// # Errors
/// The file cannot be read or truncated.
pub fn cut_after(file: &mut File, step: u32) -> io::Result<()> {
    let mut end = line_start(file, file.metadata()?.len())?;
    let mut kept = end;
    while end > 0 {
        let start = line_start(file, end.saturating_sub(1))?;
        match parse(file, start, end)? {
            Some(found) if found <= step => break,
            Some(_) => kept = start,
            None => {}
        }
        end = start;
    }
    file.set_len(kept)?;
    file.sync_all()
}

fn parse(file: &mut File, start: u64, end: u64) -> io::Result<Option<u32>> {
    let length = end.saturating_sub(start);
    if length > MAX_LINE {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(start))?;
    let mut line = Vec::new();
    file.take(length).read_to_end(&mut line)?;
    Ok(serde_json::from_slice::<Step>(&line).ok().map(|line| line.step))
}

/// The position after the last newline in the first `end` bytes; 0 without one.
fn line_start(file: &mut File, end: u64) -> io::Result<u64> {
    let mut end = end;
    let mut chunk = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(start))?;
        chunk.clear();
        file.take(end.saturating_sub(start)).read_to_end(&mut chunk)?;
        if let Some(newline) = chunk.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start.saturating_add(newline as u64).saturating_add(1));
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> (Option<u32>, String) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let newest = newest_step(file.as_file_mut()).unwrap();
        (newest, std::fs::read_to_string(file.path()).unwrap())
    }

    #[test]
    fn lines_of_later_steps_are_cut() {
        let line = |step: u32| format!("{{\"step\":{step}}}\n");
        let text = [line(1), line(2), "noise\n".to_owned(), line(4), line(4), line(7)].concat();
        for (step, kept) in [(9, 6), (7, 6), (6, 5), (4, 5), (3, 3), (2, 3), (1, 1), (0, 0)] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(format!("{text}{{\"step\":8").as_bytes()).unwrap();
            cut_after(file.as_file_mut(), step).unwrap();
            let left = std::fs::read_to_string(file.path()).unwrap();
            let expected: String = text.split_inclusive('\n').take(kept).collect();
            assert_eq!(left, expected, "{step}");
        }
    }

    #[test]
    fn the_last_complete_line_has_the_newest_step() {
        let long = format!("{{\"step\":2,\"text\":\"{}\"}}\n", "a".repeat(3 * CHUNK as usize));
        for (text, newest, kept) in [
            ("", None, ""),
            ("{\"step\":1", None, ""),
            ("{\"step\":1}\n{\"step\":2}\n", Some(2), "{\"step\":1}\n{\"step\":2}\n"),
            ("{\"step\":1}\n{\"step\":2", Some(1), "{\"step\":1}\n"),
            ("{\"step\":1}\nnoise\n\n", Some(1), "{\"step\":1}\nnoise\n\n"),
            (&long, Some(2), &long),
        ] {
            assert_eq!(read(text), (newest, kept.to_owned()), "{text:.60}");
        }
    }
}
