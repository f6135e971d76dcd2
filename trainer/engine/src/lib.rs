//! The embedded engine: tokens in, tokens with log-probabilities out, over the part of SGLang
//! 0.5.12's HTTP interface that a run needs, and OpenAI's for people.
//!
//! For laptops and tests, on CPUs; not a replacement for SGLang. Without a tokenizer in the model's
//! folder `text` is empty.
//!
//! ```text
//!  HTTP (axum) ──▶ engine: checks, bounded queue ──▶ scheduler's thread ──▶ forward ──▶ sampling
//!                                                        │      ├─ cache: KV slots of running requests
//!                                                        │      └─ prompts: prefills that the samples of a group share
//!                                                        └─ updates: folder or broadcast ──▶ weights (copied in place)
//! ```
//! Read in this order: [`request`], [`answer`], [`scheduler`], [`forward`], [`sampling`],
//! [`cache`], [`weights`], then [`http`].
//!
//! With `--deterministic` a request's tokens and log-probabilities are a function of (weights,
//! prompt, sampling parameters, seed): see [`forward`]. A sample that a pause takes back starts
//! anew from its prompt.

pub mod answer;
pub mod arguments;
pub mod cache;
pub mod detokenizer;
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
