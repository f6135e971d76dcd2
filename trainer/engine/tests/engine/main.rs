//! Engine tests over HTTP, with a small model of random weights.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod classify;
mod control;
mod determinism;
mod errors;
mod generate;
mod harness;
mod parity;
mod process;
mod updates;
