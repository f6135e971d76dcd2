//! Edits of programs and functions during a run: a process that starts again reads the new file.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::contents::{Input, Inputs};
use super::digest::digest;

/// Interval of checks.
const PERIOD: Duration = Duration::from_secs(2);
/// Parts of the spec whose files are programs and functions.
const PARTS: [&str; 2] = ["spec.rewards[", "spec.rollout.workflow."];

/// Programs and functions that were not edited since the run started.
#[derive(Debug, Default)]
pub struct ProgramEdits {
    files: Vec<Watched>,
    checked: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    field: String,
    input: Input,
    modified: Option<SystemTime>,
}

impl ProgramEdits {
    /// Those of `inputs`.
    pub fn new(inputs: &Inputs) -> Self {
        let contents = inputs.contents.iter();
        let of_programs = contents.filter(|(field, input)| {
            PARTS.iter().any(|part| field.starts_with(part)) && Path::new(&input.path).is_file()
        });
        let watched = of_programs.map(|(field, input)| Watched {
            field: field.clone(),
            input: input.clone(),
            modified: modified(&input.path),
        });
        Self { files: watched.collect(), checked: None }
    }

    /// A line for each file whose contents have changed, once.
    pub fn poll(&mut self, now: Instant) -> Vec<String> {
        if self.checked.is_some_and(|checked| now.saturating_duration_since(checked) < PERIOD) {
            return Vec::new();
        }
        self.checked = Some(now);
        let edited = self.files.extract_if(.., Watched::is_edited);
        let line = |Watched { field, input, .. }: Watched| {
            format!(
                "{field}: {} was edited while the run uses it: a process of it that starts again \
                 reads the new file",
                input.path
            )
        };
        edited.map(line).collect()
    }
}

impl Watched {
    fn is_edited(&mut self) -> bool {
        let modified = modified(&self.input.path);
        if modified == self.modified {
            return false;
        }
        self.modified = modified;
        digest(Path::new(&self.input.path)).is_ok_and(|sha256| sha256 != self.input.sha256)
    }
}

/// Time of the last write of a file; none if there is no file.
fn modified(path: &str) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_edited_function_is_named_once_and_one_that_is_written_again_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let input = |name: &str| {
            fs::write(file(name), "def reward(): return 1").unwrap();
            let path = file(name).display().to_string();
            Input { sha256: digest(Path::new(&path)).unwrap(), path }
        };
        let contents = BTreeMap::from([
            ("spec.rewards[0].python.path".to_owned(), input("reward.py")),
            ("spec.rewards[1].python.path".to_owned(), input("other.py")),
            ("spec.dataset.train.path".to_owned(), input("train.jsonl")),
        ]);
        let mut edits = ProgramEdits::new(&Inputs { contents, ..Inputs::default() });
        let mut now = Instant::now();
        let mut poll = || {
            now += PERIOD;
            edits.poll(now)
        };
        assert_eq!(poll(), [""; 0]);
        for (name, text) in [
            ("reward.py", "def reward(): return 2"),
            ("other.py", "def reward(): return 1"),
            ("train.jsonl", "{}"),
        ] {
            fs::write(file(name), text).unwrap();
            let later = SystemTime::now() + Duration::from_secs(5);
            fs::File::options().write(true).open(file(name)).unwrap().set_modified(later).unwrap();
        }
        let expected = format!(
            "spec.rewards[0].python.path: {} was edited while the run uses it: a process of it \
             that starts again reads the new file",
            file("reward.py").display()
        );
        assert_eq!(poll(), [expected]);
        assert_eq!(poll(), [""; 0]);
    }
}
