//! Settings of the operator that children depend on.

use std::collections::BTreeMap;

use super::meta::OPERATOR_NAMESPACE;
use crate::gang::GangSchedulers;

/// Settings of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of every role without one: the operator's own.
    pub image: String,
    /// Secrets in the namespaces of jobs with credentials of registries, for all pods.
    pub image_pull_secrets: Vec<String>,
    /// The operator's namespace.
    pub namespace: String,
    /// Pods that scrape metrics of jobs.
    pub scrapers: Option<Scrapers>,
    /// Whether jobs with a queue name wait until Kueue admits them.
    pub kueue: bool,
    /// Schedulers whose PodGroups jobs may have.
    pub gang_schedulers: GangSchedulers,
}

impl Settings {
    /// Settings of an operator in the namespace of install.yaml.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            image_pull_secrets: Vec::new(),
            namespace: OPERATOR_NAMESPACE.to_owned(),
            scrapers: None,
            kueue: false,
            gang_schedulers: GangSchedulers::default(),
        }
    }
}

/// Pods that scrape metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrapers {
    /// Labels of their namespace.
    pub namespace: Labels,
    /// Labels of the pods; all pods of the namespace if empty.
    pub pods: Labels,
}

/// Labels that a selector requires.
pub type Labels = BTreeMap<String, String>;

/// Parses `key=value`, or several separated by commas.
///
/// # Errors
/// The part that is not a label.
pub fn labels(text: &str) -> Result<Labels, String> {
    let label = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
    };
    let labels = text.split(',').map(|pair| label(pair).ok_or(pair)).collect::<Result<_, _>>();
    labels.map_err(|pair| format!("`{pair}` is not a label of the form key=value"))
}
