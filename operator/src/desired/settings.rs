//! Settings of the operator that children depend on.

use std::collections::BTreeMap;

use super::meta::OPERATOR_NAMESPACE;

/// Settings of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of every role without one: the operator's own.
    pub image: String,
    /// The operator's namespace.
    pub namespace: String,
    /// Pods that scrape metrics of jobs.
    pub scrapers: Option<Scrapers>,
}

impl Settings {
    /// Settings of an operator in the namespace of install.yaml.
    pub fn new(image: impl Into<String>) -> Self {
        Self { image: image.into(), namespace: OPERATOR_NAMESPACE.to_owned(), scrapers: None }
    }
}

/// Pods that scrape metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrapers {
    /// Labels of their namespace.
    pub namespace: BTreeMap<String, String>,
    /// Labels of the pods; all pods of the namespace if empty.
    pub pods: BTreeMap<String, String>,
}
