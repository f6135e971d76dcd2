//! The sandbox as a process: programs with tests, and programs that attack it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adversarial;
mod judge;
mod programs;
