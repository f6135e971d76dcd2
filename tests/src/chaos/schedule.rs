//! Fault schedule, drawn from a seed: faults start one after another and may overlap.
//!
//! Most faults start at random times. Such faults rarely hit short phases. Some positions of the
//! schedule are therefore reserved for these phases, and the target rotates from job to job:
//!
//! ```text
//!  fault   0         1        2              5               10        15              others
//!  phase   creating  loading  first rollout  in weight sync  draining  in weight sync  any
//! ```

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::expectations::Violation;
use super::faults::{Fault, Relation, targets};
use super::monitor::Monitor;
use super::phases::{Phase, TRIGGERS, current_phase, steps};
use super::testbed::{Testbed, between};
use super::workload::Workload;

/// Maximum wait for a phase; the fault is then injected in any phase.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for the phase of a reserved position.
const RESERVED_MAX_WAIT: Duration = Duration::from_secs(8);
/// Time limit of the faults that are active at the end of the schedule.
const LAST_FAULT: Duration = Duration::from_secs(300);
/// Phases of reserved positions at the start of a job.
const OPENING: [&str; 3] = ["creating", "loading", "first rollout"];
/// Phases of recurring reserved positions.
const RECURRING: [&str; 2] = ["in weight sync", "draining"];
/// Maximum wait of a disturbing fault for the end of a checking one.
const CHECKING: Duration = Duration::from_secs(60);
/// Maximum wait of a checking fault for the end of disturbing ones.
const DISTURBING: Duration = Duration::from_secs(30);
/// Interval of recurring reserved positions.
const RESERVED_INTERVAL: usize = 5;
/// Faults that cause a phase.
const PHASE_CAUSES: [(&str, &str); 1] = [("draining", "suspended and resumed")];

/// Fault schedule of one job.
pub(super) struct Schedule {
    seed: u64,
    faults: Vec<&'static Fault>,
    /// Shortest and longest interval between two faults, in seconds.
    pauses: (f64, f64),
    random: ChaCha8Rng,
}

/// Next fault and its trigger.
struct Draw {
    pause: Duration,
    cause: Option<&'static Fault>,
    trigger: &'static Phase,
    max_wait: Duration,
    fault: &'static Fault,
    random: ChaCha8Rng,
}

/// An injected fault.
pub(super) struct Injection {
    pub(super) fault: &'static Fault,
    pub(super) phase: &'static str,
    at: Duration,
    steps: usize,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, phase, at, steps } = self;
        let seconds = at.as_secs_f64();
        write!(f, "+{seconds:5.1} s  {fault} ({phase}, {steps} steps done)")
    }
}

impl Schedule {
    /// Creates the schedule from those of the faults that apply to the testbed's engine and to the
    /// workload.
    pub(super) fn new(
        seed: u64,
        testbed: &Testbed,
        workload: Workload,
        faults: &[&'static Fault],
    ) -> Self {
        let applies = |fault: &&&'static Fault| {
            testbed.engine.applies_to(fault.target) && workload.has(fault.target)
        };
        Self {
            seed,
            faults: faults.iter().filter(applies).copied().collect(),
            pauses: testbed.engine.pauses(),
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Injects faults until the schedule or the job is finished. Returns the injected faults.
    pub(super) fn play(mut self, testbed: &Testbed, monitor: &mut Monitor) -> Vec<Injection> {
        let log = Log::new();
        std::thread::scope(|scope| {
            for number in 0..testbed.engine.faults_of_a_job() {
                let Some(mut draw) = self.draw(number) else { break };
                monitor.until(testbed, draw.pause, |_| false);
                let log = &log;
                if let Some(cause) = draw.cause {
                    let random = ChaCha8Rng::from_rng(&mut draw.random);
                    log.active.fetch_add(1, Ordering::SeqCst);
                    scope.spawn(move || log.inject(testbed, cause, current_phase, random));
                }
                monitor.until(testbed, draw.max_wait, |_| (draw.trigger.is_current)(testbed));
                if monitor.succeeded() || !monitor.can_succeed() {
                    break;
                }
                log.active.fetch_add(1, Ordering::SeqCst);
                scope.spawn(move || {
                    let phase = |testbed: &Testbed| phase_of_injection(draw.trigger, testbed);
                    log.inject(testbed, draw.fault, phase, draw.random);
                });
            }
            // The invariants hold until the last fault is reverted.
            monitor.until(testbed, LAST_FAULT, |_| log.active.load(Ordering::SeqCst) == 0);
        });
        monitor.record(log.violations.into_inner());
        let mut injections = log.injections.into_inner();
        injections.sort_by_key(|injection| injection.at);
        injections
    }

    /// None if no fault applies.
    fn draw(&mut self, number: usize) -> Option<Draw> {
        let pause = between(&mut self.random, self.pauses.0, self.pauses.1);
        let trigger = &TRIGGERS[self.random.random_range(0..TRIGGERS.len())];
        let faults = self.faults.clone();
        let fault = self.one_of(&faults)?;
        let random = ChaCha8Rng::from_rng(&mut self.random);
        let by_chance = Draw { pause, cause: None, trigger, max_wait: MAX_WAIT, fault, random };
        let Some((phase, target)) =
            reserved(self.seed, number, &targets(self.faults.iter().copied()))
        else {
            return Some(by_chance);
        };
        let Some(trigger) = TRIGGERS.iter().find(|trigger| trigger.name == phase) else {
            return Some(by_chance);
        };
        let of_target: Vec<_> =
            self.faults.iter().copied().filter(|fault| fault.target == target).collect();
        let fault = self.one_of(&of_target)?;
        let cause = PHASE_CAUSES.iter().find(|(caused, _)| *caused == phase);
        let cause = cause
            .and_then(|(_, name)| self.faults.iter().copied().find(|fault| fault.name == *name));
        let pause = if number < OPENING.len() { Duration::ZERO } else { pause };
        Some(Draw { pause, cause, trigger, max_wait: RESERVED_MAX_WAIT, fault, ..by_chance })
    }

    /// A fault drawn by weight.
    fn one_of(&mut self, faults: &[&'static Fault]) -> Option<&'static Fault> {
        faults.choose_weighted(&mut self.random, |fault| fault.weight).ok().copied()
    }
}

/// Phase and target of position `number`, if it is reserved. Over as many consecutive seeds as
/// there are targets, every target is faulted at every reserved position.
fn reserved(
    seed: u64,
    number: usize,
    targets: &[&'static str],
) -> Option<(&'static str, &'static str)> {
    let recurring = number
        .checked_sub(RESERVED_INTERVAL)
        .filter(|since| since % RESERVED_INTERVAL == 0)
        .map(|since| since / RESERVED_INTERVAL);
    let (phase, nth) = match recurring {
        None => (*OPENING.get(number)?, number),
        Some(nth) => (RECURRING[nth % RECURRING.len()], OPENING.len() + nth),
    };
    let job = usize::try_from(seed % targets.len() as u64).ok()?;
    Some((phase, targets[(job + nth) % targets.len()]))
}

/// What happened during a schedule.
struct Log {
    start: Instant,
    /// Number of faults that are not reverted yet.
    active: AtomicUsize,
    injections: Mutex<Vec<Injection>>,
    violations: Mutex<Vec<String>>,
}

impl Log {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            active: AtomicUsize::new(0),
            injections: Mutex::default(),
            violations: Mutex::default(),
        }
    }

    /// Injects a fault, and records it if it had a target.
    fn inject(
        &self,
        testbed: &Testbed,
        fault: &'static Fault,
        phase: impl Fn(&Testbed) -> &'static str,
        mut random: ChaCha8Rng,
    ) {
        let injected = in_relation(testbed, fault, || {
            let this = Injection {
                fault,
                phase: phase(testbed),
                at: self.start.elapsed(),
                steps: steps(&testbed.run_directory()),
            };
            ((fault.inject)(testbed, &mut random), this)
        });
        match injected {
            Ok((Ok(()), this)) => {
                eprintln!("chaos: {this}");
                self.injections.lock().push(this);
            }
            Ok((Err(error), this)) if error.is::<Violation>() => {
                self.violations.lock().push(format!("{this}: {error}"));
                self.injections.lock().push(this);
            }
            Ok((Err(error), _)) | Err(error) => {
                let error = format!("{error:#}");
                eprintln!("chaos: missed {fault}: {}", error.lines().next().unwrap_or_default());
            }
        }
        self.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Injects a fault while no fault is active that its relation excludes.
fn in_relation<T>(testbed: &Testbed, fault: &Fault, inject: impl FnOnce() -> T) -> Result<T> {
    let lock = &testbed.undisturbed;
    let excluded = "another fault lasts too long";
    Ok(match fault.relation {
        Relation::Independent => inject(),
        Relation::Disturbing => {
            let _shared = lock.try_read_for(CHECKING).context(excluded)?;
            inject()
        }
        Relation::Checking => {
            let _alone = lock.try_write_for(DISTURBING).context(excluded)?;
            inject()
        }
    })
}

/// The trigger's phase if it was reached, else the current phase.
fn phase_of_injection(trigger: &Phase, testbed: &Testbed) -> &'static str {
    if trigger.name != "any" && (trigger.is_current)(testbed) {
        trigger.name
    } else {
        current_phase(testbed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::chaos::faults::all;

    #[test]
    fn reserved_positions_cover_all_targets_and_phases() {
        let targets = targets(all());
        let jobs = 7..7 + targets.len() as u64;
        let injections: BTreeSet<_> = jobs
            .flat_map(|seed| (0..50).map(move |number| (seed, number)))
            .filter_map(|(seed, number)| reserved(seed, number, &targets))
            .collect();
        let all: BTreeSet<_> = OPENING
            .iter()
            .chain(&RECURRING)
            .flat_map(|phase| targets.iter().map(move |target| (*phase, *target)))
            .collect();
        assert_eq!(injections, all);
    }

    #[test]
    fn reserved_positions_name_existing_phases_and_faults() {
        let phases =
            OPENING.iter().chain(&RECURRING).chain(PHASE_CAUSES.iter().map(|(phase, _)| phase));
        assert!(phases.clone().all(|phase| TRIGGERS.iter().any(|trigger| trigger.name == *phase)));
        assert!(PHASE_CAUSES.iter().all(|(_, cause)| all().any(|fault| fault.name == *cause)),);
        assert_eq!(
            (0..16).filter(|number| reserved(0, *number, &["a"]).is_some()).collect::<Vec<_>>(),
            [0, 1, 2, 5, 10, 15]
        );
    }
}
