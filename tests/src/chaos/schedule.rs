//! What strikes when: drawn from a seed, one after another, some of them while others last.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::faults::{FAULTS, Fault};
use super::moments::{MOMENTS, Moment, phase, steps};
use super::scene::{Scene, between};
use super::watch::Watch;

/// How long a moment is waited for, before the fault strikes anyway.
const PATIENCE: Duration = Duration::from_secs(2);

/// Draws of one job.
pub(super) struct Schedule {
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
        write!(f, "+{:5.1} s  {} {} ({phase}, {steps} steps done)", at.as_secs_f64(), fault.part, fault.name)
    }
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Plays it until it is through or the job is; gives what struck.
    pub(super) fn play(mut self, scene: &Scene, watch: &mut Watch) -> Vec<Struck> {
        let faults: Vec<&'static Fault> = FAULTS.iter().filter(|fault| scene.engine.meets(fault)).collect();
        let (shortest, longest) = scene.engine.pauses();
        let (start, struck) = (Instant::now(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..scene.engine.faults_of_a_job() {
                let pause = between(&mut self.random, shortest, longest);
                let moment = &MOMENTS[self.random.random_range(0..MOMENTS.len())];
                let fault = faults[self.random.random_range(0..faults.len())];
                let mut random = ChaCha8Rng::from_rng(&mut self.random);
                watch.until(scene, pause, |_| false);
                watch.until(scene, PATIENCE, |_| (moment.is_now)(scene));
                if watch.succeeded() || !watch.goes_on() {
                    break;
                }
                let struck = &struck;
                scope.spawn(move || {
                    let this = Struck { fault, phase: phase_at(moment, scene), at: start.elapsed(), steps: steps(&scene.run_directory()) };
                    match (fault.strike)(scene, &mut random) {
                        Ok(()) => {
                            eprintln!("chaos: {this}");
                            struck.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(this);
                        }
                        Err(error) => eprintln!("chaos: missed {} {}: {}", fault.part, fault.name, error.to_string().lines().next().unwrap_or_default()),
                    }
                });
            }
        });
        let mut struck = struck.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        struck.sort_by_key(|struck| struck.at);
        struck
    }
}

/// The moment, if it came; else whatever phase it is.
fn phase_at(moment: &Moment, scene: &Scene) -> &'static str {
    if moment.name != "any" && (moment.is_now)(scene) { moment.name } else { phase(scene) }
}
