//! Embedded inference engine: the part of SGLang 0.5.12's HTTP API that a run needs, and the OpenAI
//! API.
//!
//! It runs on CPUs, for laptops and tests; it does not replace SGLang. Without a tokenizer in the
//! model folder, `text` is empty.
//!
//! ```text
//!  HTTP (axum) ──▶ engine: validation, queue ──▶ scheduler thread ──▶ forward ──▶ sampling
//!                                                    │  ├─ cache: KV slots of running requests
//!                                                    │  └─ prompts: prefills shared by samples
//!                                                    └─ updates: folder, broadcast ──▶ weights
//! ```
//! Reading order: [`request`], [`generation`], [`scheduler`], [`forward`], [`sampling`], [`cache`],
//! [`weights`], then [`http`]. With `--deterministic`, the tokens and log-probabilities of a
//! request are a function of (weights, prompt, sampling parameters, seed); see [`forward`]. A
//! retracted sample then restarts from its prompt.

pub mod arguments;
pub mod cache;
pub mod engine;
pub mod forward;
pub mod generation;
pub mod http;
pub mod loading;
pub mod metrics;
pub mod prompts;
pub mod request;
pub mod sampling;
pub mod scheduler;
pub mod server;
pub mod weights;
