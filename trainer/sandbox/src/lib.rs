//! Sandbox of programs that models write: extraction, tests, limits, outcomes and verdicts. The
//! program `rljob-sandbox` runs them; everything in this library except [`children`] is pure.
//!
//! ```text
//!  completion ─▶ program ─┐
//!  answer ─▶ test cases ──┴─▶ rljob-sandbox ─▶ outcome per test ─▶ verdict
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

pub mod children;
pub mod cpp;
pub mod filter;
pub mod message;
pub mod output;
pub mod plan;
pub mod program;
pub mod tests_of_row;
pub mod tool;
