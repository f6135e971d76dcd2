//! Summary of a chaos run: injected faults by target and phase, and the number of violations.

use std::collections::BTreeMap;
use std::fmt;

use super::faults::{all, targets};
use super::phases::PHASES;

/// Counts of one or more jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Injected faults by target and phase.
    pub injected: BTreeMap<(&'static str, &'static str), usize>,
    /// Number of violated invariants.
    pub violations: usize,
    /// Number of jobs.
    pub jobs: u32,
}

impl Summary {
    /// Total number of injected faults.
    pub fn faults(&self) -> usize {
        self.injected.values().sum()
    }

    /// Adds the counts of another summary.
    pub(super) fn add(&mut self, other: Self) {
        for (place, count) in other.injected {
            *self.injected.entry(place).or_default() += count;
        }
        self.violations += other.violations;
        self.jobs += other.jobs;
    }
}

/// Formats a table of targets and phases.
impl fmt::Display for Summary {
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
        for target in targets(all()) {
            let count = |phase| self.injected.get(&(target, phase)).copied().unwrap_or_default();
            writeln!(f, "{}", row(target, PHASES.map(|phase| count(phase).to_string())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_added_and_formatted_by_target_and_phase() {
        let one = Summary { injected: [(("engine", "loading"), 2)].into(), violations: 0, jobs: 1 };
        let mut all = Summary {
            injected: [(("engine", "loading"), 1), (("node", "steady"), 4)].into(),
            violations: 1,
            jobs: 2,
        };
        all.add(one);
        assert_eq!((all.faults(), all.violations, all.jobs), (7, 1, 3));
        let table = all.to_string();
        let row = |target: &str| -> Vec<&str> {
            let line =
                table.lines().find(|line| line.starts_with(&format!("| {target} "))).unwrap();
            line.split('|').skip(2).map(str::trim).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(row("engine"), ["0", "3", "0", "0", "0", "0", "0", "0"]);
        assert_eq!(row("node"), ["0", "0", "0", "4", "0", "0", "0", "0"]);
    }
}
