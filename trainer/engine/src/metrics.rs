//! Prometheus metrics with SGLang's names and labels.

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, TextEncoder,
};

/// Histogram bounds in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    pub running: IntGauge,
    pub queued: IntGauge,
    /// Running requests that a pause keeps with their cache.
    pub paused: IntGauge,
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
    pub context_length: IntGauge,
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
    /// Creates metrics in a separate registry, with SGLang's labels.
    pub fn new(model: &str) -> Result<Self, prometheus::Error> {
        let requests = Family { registry: Registry::new(), model, ranks: &[] };
        let scheduler = Family { registry: requests.registry.clone(), model, ranks: &RANKS };
        Ok(Self {
            running: scheduler.gauge("num_running_reqs", "The number of running requests.")?,
            queued: scheduler
                .gauge("num_queue_reqs", "The number of requests in the waiting queue.")?,
            paused: scheduler.gauge("num_paused_reqs", "The number of paused requests.")?,
            throughput: scheduler.rate("gen_throughput", "The generation throughput (token/s).")?,
            prompt_tokens: requests
                .counter("prompt_tokens_total", "Number of prefill tokens processed.")?,
            cached_tokens: requests
                .counter("cached_tokens_total", "Number of cached prompt tokens.")?,
            generation_tokens: requests
                .counter("generation_tokens_total", "Number of generation tokens processed.")?,
            requests: requests.counter("num_requests_total", "Number of requests processed.")?,
            aborted: requests
                .counter("num_aborted_requests_total", "Number of requests aborted.")?,
            retracted: scheduler.counter(
                "num_retracted_requests_total",
                "Number of requests moved back to the queue.",
            )?,
            used_tokens: scheduler.gauge("num_used_tokens", "The number of used tokens.")?,
            max_total_tokens: scheduler.gauge(
                "max_total_num_tokens",
                "Maximum total number of tokens in the KV cache pool.",
            )?,
            context_length: scheduler
                .gauge("context_len", "Maximum number of tokens of a request.")?,
            token_usage: scheduler.rate("token_usage", "The token usage.")?,
            first_token: requests
                .histogram("time_to_first_token_seconds", "Time to the first token in seconds.")?,
            inter_token: requests
                .histogram("inter_token_latency_seconds", "Time from token to token in seconds.")?,
            latency: requests.histogram(
                "e2e_request_latency_seconds",
                "Time from the arrival of a request to its response in seconds.",
            )?,
            queue_time: scheduler
                .histogram("queue_time_seconds", "Time in the queue in seconds.")?,
            registry: requests.registry,
        })
    }

    /// Renders the text exposition format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// Labels of SGLang's scheduler processes, of which this engine has one.
const RANKS: [&str; 3] = ["moe_ep_rank", "pp_rank", "tp_rank"];

/// Metrics with the same labels.
struct Family<'a> {
    registry: Registry,
    model: &'a str,
    ranks: &'static [&'static str],
}

impl Family<'_> {
    fn options(&self, name: &str, help: &str) -> Opts {
        let options = Opts::new(format!("sglang:{name}"), help)
            .const_label("engine_type", "unified")
            .const_label("model_name", self.model);
        self.ranks.iter().fold(options, |options, rank| options.const_label(*rank, "0"))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::with_opts(self.options(name, help))?)
    }

    fn rate(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.register(Gauge::with_opts(self.options(name, help))?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::with_opts(self.options(name, help))?)
    }

    fn histogram(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        let options = HistogramOpts::from(self.options(name, help)).buckets(SECONDS.to_vec());
        self.register(Histogram::with_opts(options)?)
    }

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}
