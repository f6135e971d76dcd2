//! Samples of a run to read: positions of steps in a JSONL file, and pages of a step's lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::{Tail, evenly};

/// Most lines of a page.
const MAX_LINES: usize = 50;
/// Most bytes of the lines of a page. A longer line is omitted.
const MAX_BYTES: u64 = 4 << 20;

/// A JSONL file whose lines have a step, in the order of steps.
#[derive(Debug)]
pub struct SampleFile {
    path: PathBuf,
    tail: Tail,
    steps: Vec<StepLines>,
}

/// Position of a step's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepLines {
    step: u32,
    start: u64,
    end: u64,
}

/// Some lines of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub step: u32,
    /// Nearest step with samples before this one.
    pub previous: Option<u32>,
    /// Nearest step with samples after this one.
    pub next: Option<u32>,
    pub samples: Vec<Value>,
    /// Value of `skip` for the rest; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<usize>,
    /// Lines that are too long for a page.
    pub omitted: usize,
}

impl SampleFile {
    pub fn new(path: PathBuf) -> Self {
        Self { tail: Tail::new(path.clone()), path, steps: Vec::new() }
    }

    /// Reads the lines that were added.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn refresh(&mut self) -> io::Result<()> {
        #[derive(Deserialize)]
        struct Line {
            step: u32,
        }
        let steps = &mut self.steps;
        self.tail.each_at(|position, line: Line| {
            match steps.last_mut().filter(|last| last.step >= line.step) {
                Some(last) => last.end = position.end,
                None => steps.push(StepLines {
                    step: line.step,
                    start: position.start,
                    end: position.end,
                }),
            }
            Ok(())
        })
    }

    /// At most `count` of the steps, evenly, and the last.
    pub fn steps(&self, count: usize) -> Vec<u32> {
        evenly(self.steps.iter().map(|lines| lines.step).collect(), count)
    }

    /// Lines of the newest step up to `step` that has any, or of the first one, without the first
    /// `skip` of those that are `wanted`. `None` without samples.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn page(
        &self,
        step: u32,
        skip: usize,
        wanted: impl Fn(&Value) -> bool,
    ) -> io::Result<Option<Page>> {
        let after = self.steps.partition_point(|lines| lines.step <= step);
        let index = after.saturating_sub(1);
        let at = |index: usize| self.steps.get(index).copied();
        let Some(lines) = at(index) else { return Ok(None) };
        let neighbor = |index: Option<usize>| Some(at(index?)?.step);
        let mut page = Page {
            step: lines.step,
            previous: neighbor(index.checked_sub(1)),
            next: neighbor(index.checked_add(1)),
            ..Page::default()
        };
        self.read(lines, skip, wanted, &mut page)?;
        Ok(Some(page))
    }

    fn read(
        &self,
        lines: StepLines,
        skip: usize,
        wanted: impl Fn(&Value) -> bool,
        page: &mut Page,
    ) -> io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(lines.start))?;
        let mut reader = BufReader::new(file).take(lines.end.saturating_sub(lines.start));
        let (mut line, mut index, mut bytes) = (Vec::new(), 0_usize, 0_u64);
        loop {
            line.clear();
            let length = reader.by_ref().take(MAX_BYTES).read_until(b'\n', &mut line)? as u64;
            if length == 0 {
                return Ok(());
            }
            if !line.ends_with(b"\n") {
                reader.skip_until(b'\n')?;
                page.omitted = page.omitted.saturating_add(1);
                continue;
            }
            let Ok(sample) = serde_json::from_slice::<Value>(&line) else { continue };
            if !wanted(&sample) {
                continue;
            }
            if index >= skip {
                bytes = bytes.saturating_add(length);
                let is_full = page.samples.len() >= MAX_LINES || bytes > MAX_BYTES;
                if is_full && !page.samples.is_empty() {
                    page.rest = Some(index);
                    return Ok(());
                }
                page.samples.push(sample);
            }
            index = index.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(lines: &[&str]) -> (tempfile::TempDir, SampleFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl");
        std::fs::write(&path, lines.concat()).unwrap();
        let mut samples = SampleFile::new(path);
        samples.refresh().unwrap();
        (folder, samples)
    }

    #[test]
    fn a_page_has_the_lines_of_a_step_and_its_neighbors() {
        let (folder, mut samples) =
            file(&["{\"step\":2,\"a\":1}\n", "{\"step\":2,\"a\":2}\n", "{\"step\":5,\"a\":3}\n"]);
        let page = |samples: &SampleFile, step| samples.page(step, 0, |_| true).unwrap().unwrap();
        let first = Page {
            step: 2,
            next: Some(5),
            samples: vec![
                serde_json::json!({"step": 2, "a": 1}),
                serde_json::json!({"step": 2, "a": 2}),
            ],
            ..Page::default()
        };
        assert_eq!([1, 2, 4].map(|step| page(&samples, step)), [(); 3].map(|()| first.clone()));
        let path = folder.path().join("samples.jsonl");
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"{\"step\":7,\"a\":4}\n").unwrap();
        samples.refresh().unwrap();
        let middle = page(&samples, 5);
        assert_eq!((middle.previous, middle.step, middle.next), (Some(2), 5, Some(7)));
        assert_eq!((samples.steps(9), samples.steps(2)), (vec![2, 5, 7], vec![2, 7]));
        let wanted = samples.page(2, 0, |sample| sample["a"] == 2).unwrap().unwrap();
        assert_eq!(wanted.samples, [serde_json::json!({"step": 2, "a": 2})]);
    }

    #[test]
    fn a_long_step_has_several_pages_and_too_long_lines_are_counted() {
        let line = |index: usize| format!("{{\"step\":1,\"a\":{index}}}\n");
        let mut lines: Vec<String> = (0..MAX_LINES + 2).map(line).collect();
        lines.push(format!("{{\"step\":1,\"a\":\"{}\"}}\n", "x".repeat(MAX_BYTES as usize)));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (_folder, samples) = file(&lines);
        let first = samples.page(1, 0, |_| true).unwrap().unwrap();
        assert_eq!((first.samples.len(), first.rest, first.omitted), (MAX_LINES, Some(50), 0));
        let second = samples.page(1, MAX_LINES, |_| true).unwrap().unwrap();
        assert_eq!((second.samples.len(), second.rest, second.omitted), (2, None, 1));
        let (_folder, empty) = file(&[]);
        assert_eq!(empty.page(1, 0, |_| true).unwrap(), None);
    }
}
