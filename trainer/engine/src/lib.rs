//! The embedded engine: tokens in, tokens with log-probabilities out, over the part of SGLang 0.5.12's HTTP interface that a run needs.
//!
//! For laptops and tests, on CPUs; not a replacement for SGLang. It has no tokenizer: `text` is always empty.
//!
//! ```text
//!  HTTP (axum) ──▶ engine: checks, bounded queue ──▶ scheduler's thread ──▶ forward ──▶ sampling
//!                                                        │      ├─ cache: KV slots of running requests
//!                                                        │      └─ prompts: prefills that the samples of a group share
//!                                                        └─ updates: folder or broadcast ──▶ weights (copied in place)
//! ```
//! Read in this order: [`request`], [`scheduler`], [`forward`], [`sampling`], [`cache`], [`weights`], then [`http`].
//!
//! With `--deterministic` a request's tokens and log-probabilities are a function of (weights, prompt, sampling parameters, seed): see [`forward`].

pub mod arguments;
pub mod cache;
pub mod engine;
pub mod forward;
pub mod http;
pub mod loading;
pub mod metrics;
pub mod prompts;
pub mod request;
pub mod sampling;
pub mod scheduler;
pub mod server;
pub mod weights;
