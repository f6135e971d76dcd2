//! `rljob-chaos`: jobs under fault injection on a cluster of two nodes. Environment:
//! `CHAOS_MINUTES` (default 30), `CHAOS_SEED` (default: clock), `CHAOS_ENGINE` (Embedded or
//! SGLang), `CHAOS_FAULTS` (parts of the target and name of the faults to draw, separated by
//! commas). Prints a table of faults by target and phase and a summary line; exits with 1 if an
//! invariant was violated.

#![expect(clippy::print_stdout, reason = "the last line is the result")]

use std::env;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::{Context, Error, Result};
use rljob_tests::chaos::{self, Engine};

fn main() -> Result<ExitCode> {
    let clock =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let engine = variable("CHAOS_ENGINE", Engine::Embedded)?;
    let (minutes, seed) = (variable("CHAOS_MINUTES", 30.0)?, variable("CHAOS_SEED", clock)?);
    let only = env::var("CHAOS_FAULTS").unwrap_or_default();
    let summary = chaos::run(minutes, seed, engine, &only)?;
    print!("{summary}");
    println!("chaos: {} faults, {} violations", summary.faults(), summary.violations);
    Ok(if summary.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn variable<T: FromStr<Err: Into<Error>>>(name: &str, default: T) -> Result<T> {
    let Ok(text) = env::var(name) else { return Ok(default) };
    text.parse().map_err(Into::into).with_context(|| format!("{name} is {text:?}"))
}
