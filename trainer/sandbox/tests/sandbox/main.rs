//! The sandbox as a process: programs with tests, and programs that attack it, and tools.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adversarial;
mod judge;
mod programs;
mod tool;
