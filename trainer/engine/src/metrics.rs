//! Prometheus metrics with SGLang's names.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Registry, TextEncoder,
};

/// Histogram bounds in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    pub running: IntGauge,
    pub queued: IntGauge,
    /// Generated tokens per second over the last second; 0 when idle.
    pub throughput: Gauge,
    /// Prompt tokens of started requests.
    pub prompt_tokens: IntCounter,
    /// Prompt tokens whose prefill was cached.
    pub cached_tokens: IntCounter,
    pub generation_tokens: IntCounter,
    /// Completed requests, including aborted ones.
    pub requests: IntCounter,
    pub aborted: IntCounter,
    /// Requests moved back to the queue by a pause.
    pub retracted: IntCounter,
    pub used_tokens: IntGauge,
    pub max_total_tokens: IntGauge,
    /// Fraction of the token positions in use.
    pub token_usage: Gauge,
    /// Arrival to first token.
    pub first_token: Histogram,
    /// Time between tokens of a running request.
    pub inter_token: Histogram,
    /// Arrival to response.
    pub latency: Histogram,
    /// Arrival to start.
    pub queue_time: Histogram,
}

impl Metrics {
    /// Creates metrics in a separate registry.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let gauge = |name, help| register(&registry, IntGauge::new(name, help)?);
        let rate = |name, help| register(&registry, Gauge::new(name, help)?);
        let counter = |name, help| register(&registry, IntCounter::new(name, help)?);
        let histogram = |name, help| histogram(&registry, name, help);
        Ok(Self {
            running: gauge("sglang:num_running_reqs", "The number of running requests.")?,
            queued: gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.")?,
            throughput: rate("sglang:gen_throughput", "The generation throughput (token/s).")?,
            prompt_tokens: counter(
                "sglang:prompt_tokens_total",
                "Number of prefill tokens processed.",
            )?,
            cached_tokens: counter(
                "sglang:cached_tokens_total",
                "Number of cached prompt tokens.",
            )?,
            generation_tokens: counter(
                "sglang:generation_tokens_total",
                "Number of generation tokens processed.",
            )?,
            requests: counter("sglang:num_requests_total", "Number of requests processed.")?,
            aborted: counter("sglang:num_aborted_requests_total", "Number of requests aborted.")?,
            retracted: counter(
                "sglang:num_retracted_requests_total",
                "Number of requests moved back to the queue.",
            )?,
            used_tokens: gauge("sglang:num_used_tokens", "The number of used tokens.")?,
            max_total_tokens: gauge(
                "sglang:max_total_num_tokens",
                "Maximum total number of tokens in the KV cache pool.",
            )?,
            token_usage: rate("sglang:token_usage", "The token usage.")?,
            first_token: histogram(
                "sglang:time_to_first_token_seconds",
                "Time to the first token in seconds.",
            )?,
            inter_token: histogram(
                "sglang:inter_token_latency_seconds",
                "Time from token to token in seconds.",
            )?,
            latency: histogram(
                "sglang:e2e_request_latency_seconds",
                "Time from the arrival of a request to its response in seconds.",
            )?,
            queue_time: histogram("sglang:queue_time_seconds", "Time in the queue in seconds.")?,
            registry,
        })
    }

    /// Renders the text exposition format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

fn register<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn histogram(registry: &Registry, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
    register(
        registry,
        Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))?,
    )
}
