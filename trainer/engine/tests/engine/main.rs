//! The engine over HTTP, with a real model of random weights: what a run relies on.

mod control;
mod determinism;
mod errors;
mod generate;
mod harness;
mod parity;
mod process;
mod updates;
