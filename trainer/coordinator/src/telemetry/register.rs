//! Registration of metrics.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntGauge, Registry};

pub fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    register(registry, IntGauge::new(name, help)?)
}

pub fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<IntCounter, prometheus::Error> {
    register(registry, IntCounter::new(name, help)?)
}

pub fn register<C>(registry: &Registry, metric: C) -> Result<C, prometheus::Error>
where
    C: Collector + Clone + 'static,
{
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
