//! `chaos`: jobs under faults on a cluster of two nodes, for `CHAOS_MINUTES` (30), from
//! `CHAOS_SEED` (of the clock), with engines of `CHAOS_ENGINE` (Embedded, or SGLang). A table says
//! how many faults struck which part in which phase, the last line how many and what did not hold;
//! anything that did not ends it with an error.

#![expect(clippy::print_stdout, reason = "its last line is its result")]

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
    let tally =
        chaos::run(variable("CHAOS_MINUTES", 30.0)?, variable("CHAOS_SEED", clock)?, engine)?;
    print!("{tally}");
    println!("chaos: {} faults, {} violations", tally.faults(), tally.violations);
    Ok(if tally.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn variable<T: FromStr<Err: Into<Error>>>(name: &str, default: T) -> Result<T> {
    let Ok(text) = env::var(name) else { return Ok(default) };
    text.parse().map_err(Into::into).with_context(|| format!("{name} is {text:?}"))
}
