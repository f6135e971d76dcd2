//! Prometheus metrics under SGLang's names.

use prometheus::{Encoder, Gauge, IntCounter, IntGauge, Registry, TextEncoder};

/// The metrics of one engine.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests being decoded.
    pub running: IntGauge,
    /// Requests that wait.
    pub queued: IntGauge,
    /// Tokens generated a second, over about the last second; 0 when idle.
    pub throughput: Gauge,
    /// Prompt tokens of requests that were started.
    pub prompt_tokens: IntCounter,
    /// Prompt tokens that were found in the prompt cache.
    pub cached_tokens: IntCounter,
    /// Tokens generated.
    pub generation_tokens: IntCounter,
    /// Requests answered, aborted ones included.
    pub requests: IntCounter,
    /// Requests answered as aborted.
    pub aborted: IntCounter,
}

impl Metrics {
    /// Metrics in a registry of their own.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        Ok(Self {
            running: register(&registry, IntGauge::new("sglang:num_running_reqs", "The number of running requests.")?)?,
            queued: register(&registry, IntGauge::new("sglang:num_queue_reqs", "The number of requests in the waiting queue.")?)?,
            throughput: register(&registry, Gauge::new("sglang:gen_throughput", "The generation throughput (token/s).")?)?,
            prompt_tokens: register(&registry, IntCounter::new("sglang:prompt_tokens_total", "Number of prefill tokens processed.")?)?,
            cached_tokens: register(&registry, IntCounter::new("sglang:cached_tokens_total", "Number of cached prompt tokens.")?)?,
            generation_tokens: register(&registry, IntCounter::new("sglang:generation_tokens_total", "Number of generation tokens processed.")?)?,
            requests: register(&registry, IntCounter::new("sglang:num_requests_total", "Number of requests processed.")?)?,
            aborted: register(&registry, IntCounter::new("sglang:num_aborted_requests_total", "Number of requests aborted.")?)?,
            registry,
        })
    }

    /// The text format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

fn register<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
