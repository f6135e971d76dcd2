//! What strikes when: drawn from a seed, one after another, some of them while others last.
//!
//! Most is left to chance, which strikes short phases seldom and by few parts. They have turns, in
//! which the part goes round from job to job:
//!
//! ```text
//!  fault   0         1        2              3 4  5               6 … 9  10        11 … 14  15              16 …
//!  phase   creating  loading  first rollout  any  in weight sync  any    draining  any      in weight sync  any
//! ```

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::faults::{FAULTS, Fault, parts};
use super::moments::{MOMENTS, Moment, phase, steps};
use super::scene::{Scene, between};
use super::watch::Watch;

/// How long a moment is waited for, before the fault strikes anyway.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a phase that has its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(8);
/// Phases that a job begins with.
const OPENING: [&str; 3] = ["creating", "loading", "first rollout"];
/// Phases that come again and again.
const RECURRING: [&str; 2] = ["in weight sync", "draining"];
/// Faults from one turn of theirs to the next.
const DISTANCE: usize = 5;
/// The fault that brings a phase about.
const CAUSES: [(&str, &str); 1] = [("draining", "suspended and resumed")];

/// Draws of one job.
pub(super) struct Schedule {
    seed: u64,
    faults: Vec<&'static Fault>,
    /// Shortest and longest time between two faults, in seconds.
    pauses: (f64, f64),
    random: ChaCha8Rng,
}

/// What is to strike next, and when.
struct Draw {
    pause: Duration,
    cause: Option<&'static Fault>,
    moment: &'static Moment,
    patience: Duration,
    fault: &'static Fault,
    random: ChaCha8Rng,
}

/// A fault that struck.
pub(super) struct Struck {
    pub(super) fault: &'static Fault,
    pub(super) phase: &'static str,
    at: Duration,
    steps: usize,
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, phase, at, steps } = self;
        write!(
            f,
            "+{:5.1} s  {} {} ({phase}, {steps} steps done)",
            at.as_secs_f64(),
            fault.part,
            fault.name
        )
    }
}

impl Schedule {
    /// Of the faults that are for jobs on this scene's engine.
    pub(super) fn new(seed: u64, scene: &Scene) -> Self {
        let faults = FAULTS.iter().filter(|fault| scene.engine.meets(fault)).collect();
        Self {
            seed,
            faults,
            pauses: scene.engine.pauses(),
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Plays it until it is through or the job is; gives what struck.
    pub(super) fn play(mut self, scene: &Scene, watch: &mut Watch) -> Vec<Struck> {
        let (start, struck) = (Instant::now(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for number in 0..scene.engine.faults_of_a_job() {
                let mut draw = self.draw(number);
                watch.until(scene, draw.pause, |_| false);
                if let Some(cause) = draw.cause {
                    let (random, struck) = (ChaCha8Rng::from_rng(&mut draw.random), &struck);
                    scope.spawn(move || strike(scene, cause, phase(scene), start, random, struck));
                }
                watch.until(scene, draw.patience, |_| (draw.moment.is_now)(scene));
                if watch.succeeded() || !watch.goes_on() {
                    break;
                }
                let struck = &struck;
                scope.spawn(move || {
                    strike(
                        scene,
                        draw.fault,
                        phase_at(draw.moment, scene),
                        start,
                        draw.random,
                        struck,
                    )
                });
            }
        });
        let mut struck = struck.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        struck.sort_by_key(|struck| struck.at);
        struck
    }

    fn draw(&mut self, number: usize) -> Draw {
        let pause = between(&mut self.random, self.pauses.0, self.pauses.1);
        let moment = &MOMENTS[self.random.random_range(0..MOMENTS.len())];
        let fault = self.faults[self.random.random_range(0..self.faults.len())];
        let random = ChaCha8Rng::from_rng(&mut self.random);
        let by_chance = Draw { pause, cause: None, moment, patience: PATIENCE, fault, random };
        let Some((phase, part)) = turn(self.seed, number, &parts(self.faults.iter().copied()))
        else {
            return by_chance;
        };
        let Some(moment) = MOMENTS.iter().find(|moment| moment.name == phase) else {
            return by_chance;
        };
        let of_part: Vec<_> =
            self.faults.iter().copied().filter(|fault| fault.part == part).collect();
        let fault = of_part[self.random.random_range(0..of_part.len())];
        let cause = CAUSES.iter().find(|(caused, _)| *caused == phase);
        let cause = cause
            .and_then(|(_, name)| self.faults.iter().copied().find(|fault| fault.name == *name));
        let pause = if number < OPENING.len() { Duration::ZERO } else { pause };
        Draw { pause, cause, moment, patience: TURN_PATIENCE, fault, ..by_chance }
    }
}

/// The phase whose turn the fault of this number is, if it is one, and the part to strike: after as
/// many jobs as there are parts, each was struck at every turn.
fn turn(seed: u64, number: usize, parts: &[&'static str]) -> Option<(&'static str, &'static str)> {
    let recurring = number
        .checked_sub(DISTANCE)
        .filter(|since| since % DISTANCE == 0)
        .map(|since| since / DISTANCE);
    let (phase, nth) = match recurring {
        None => (*OPENING.get(number)?, number),
        Some(nth) => (RECURRING[nth % RECURRING.len()], OPENING.len() + nth),
    };
    let job = usize::try_from(seed % parts.len() as u64).ok()?;
    Some((phase, parts[(job + nth) % parts.len()]))
}

/// Lets a fault strike, and notes it if there was something to strike.
fn strike(
    scene: &Scene,
    fault: &'static Fault,
    phase: &'static str,
    start: Instant,
    mut random: ChaCha8Rng,
    struck: &Mutex<Vec<Struck>>,
) {
    let this = Struck { fault, phase, at: start.elapsed(), steps: steps(&scene.run_directory()) };
    match (fault.strike)(scene, &mut random) {
        Ok(()) => {
            eprintln!("chaos: {this}");
            struck.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(this);
        }
        Err(error) => eprintln!(
            "chaos: missed {} {}: {}",
            fault.part,
            fault.name,
            error.to_string().lines().next().unwrap_or_default()
        ),
    }
}

/// The moment, if it came; else whatever phase it is.
fn phase_at(moment: &Moment, scene: &Scene) -> &'static str {
    if moment.name != "any" && (moment.is_now)(scene) { moment.name } else { phase(scene) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn as_many_jobs_as_there_are_parts_strike_each_of_them_in_every_phase_that_has_turns() {
        let parts = parts(FAULTS);
        let jobs = 7..7 + parts.len() as u64;
        let struck: BTreeSet<_> = jobs
            .flat_map(|seed| (0..50).map(move |number| (seed, number)))
            .filter_map(|(seed, number)| turn(seed, number, &parts))
            .collect();
        let all: BTreeSet<_> = OPENING
            .iter()
            .chain(&RECURRING)
            .flat_map(|phase| parts.iter().map(move |part| (*phase, *part)))
            .collect();
        assert_eq!(struck, all);
    }

    #[test]
    fn turns_are_of_phases_and_faults_that_exist() {
        let phases = OPENING.iter().chain(&RECURRING).chain(CAUSES.iter().map(|(phase, _)| phase));
        assert!(phases.clone().all(|phase| MOMENTS.iter().any(|moment| moment.name == *phase)));
        assert!(CAUSES.iter().all(|(_, cause)| FAULTS.iter().any(|fault| fault.name == *cause)));
        assert_eq!(
            (0..16).filter(|number| turn(0, *number, &["a"]).is_some()).collect::<Vec<_>>(),
            [0, 1, 2, 5, 10, 15]
        );
    }
}
