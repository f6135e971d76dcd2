//! Fuzz targets: one function per parser of outside input. A target ignores errors of the parser
//! and panics where a result contradicts itself.
//!
//! ```text
//!  make fuzz ─▶ rljob-fuzz (libFuzzer) ─┐
//!                                       ├─▶ TARGETS ─▶ parsers
//!  make test ─▶ tests/seeds.rs ─────────┘
//! ```
//!
//! `seeds/TARGET/` has the first inputs, and every input that once failed. Must not use the
//! network; files are written only to a temporary folder.

#![expect(clippy::panic, reason = "a target reports a violation to libFuzzer by a panic")]

mod answers;
mod configuration;
mod data;
mod folder;
mod math;
mod templates;
mod tokenizer;

/// A target: a parser with its checks.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("chat_template", templates::chat_template),
    ("checkpoint_manifest", data::checkpoint_manifest),
    ("coordinator_status", answers::coordinator_status),
    ("dataset_card", data::dataset_card),
    ("dataset_rows", data::dataset_rows),
    ("engine_stream", answers::engine_stream),
    ("job_yaml", configuration::job_yaml),
    ("math_answer", math::math_answer),
    ("prompt_template", templates::prompt_template),
    ("rank_batch", data::rank_batch),
    ("run_config", configuration::run_config),
];

/// The target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|(other, _)| *other == name).map(|(_, target)| target)
}
