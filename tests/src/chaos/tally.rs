//! What a run of the tool has done: faults by the part that they struck and the phase that the job
//! was in, and what did not hold.

use std::collections::BTreeMap;
use std::fmt;

use super::faults::{FAULTS, parts};
use super::moments::PHASES;

/// Counts of one job, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Faults that struck, by part and phase.
    pub struck: BTreeMap<(&'static str, &'static str), usize>,
    /// Times that something did not hold that must.
    pub violations: usize,
    /// Jobs that ran.
    pub jobs: u32,
}

impl Tally {
    /// Faults that struck.
    pub fn faults(&self) -> usize {
        self.struck.values().sum()
    }

    /// Adds another one's counts.
    pub(super) fn add(&mut self, other: Self) {
        for (place, count) in other.struck {
            *self.struck.entry(place).or_default() += count;
        }
        self.violations += other.violations;
        self.jobs += other.jobs;
    }
}

/// A table of parts and phases.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |name: &str| name.len().max(3);
        let row = |name: &str, cells: [String; PHASES.len()]| {
            let cells = PHASES
                .iter()
                .zip(cells)
                .map(|(phase, cell)| format!(" {cell:>0$} |", width(phase)));
            format!("| {name:<15} |{}", cells.collect::<String>())
        };
        writeln!(f, "{}", row("", PHASES.map(str::to_owned)))?;
        writeln!(f, "{}", row("---", PHASES.map(|phase| "-".repeat(width(phase)))))?;
        for part in parts(FAULTS) {
            let count = |phase| self.struck.get(&(part, phase)).copied().unwrap_or_default();
            writeln!(f, "{}", row(part, PHASES.map(|phase| count(phase).to_string())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_added_and_told_by_part_and_phase() {
        let one = Tally { struck: [(("engine", "loading"), 2)].into(), violations: 0, jobs: 1 };
        let mut all = Tally {
            struck: [(("engine", "loading"), 1), (("node", "steady"), 4)].into(),
            violations: 1,
            jobs: 2,
        };
        all.add(one);
        assert_eq!((all.faults(), all.violations, all.jobs), (7, 1, 3));
        let table = all.to_string();
        let row = |part: &str| -> Vec<&str> {
            let line = table.lines().find(|line| line.starts_with(&format!("| {part} "))).unwrap();
            line.split('|').skip(2).map(str::trim).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(row("engine"), ["0", "3", "0", "0", "0", "0", "0", "0"]);
        assert_eq!(row("node"), ["0", "0", "0", "4", "0", "0", "0", "0"]);
    }
}
