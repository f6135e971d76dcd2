//! Settings of the operator that children depend on.

use std::collections::BTreeMap;
use std::net::IpAddr;

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
    /// Blocks of addresses of servers outside a job; all addresses and pods if empty.
    pub egress_cidrs: Vec<String>,
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
            egress_cidrs: Vec::new(),
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

/// Parses a block of addresses, such as `10.0.0.0/8`.
///
/// # Errors
/// The text has another form.
pub fn cidr(text: &str) -> Result<String, String> {
    let is_block = |(address, bits): (&str, &str)| {
        let most = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    };
    if text.split_once('/').is_some_and(is_block) {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a block of addresses, such as 10.0.0.0/8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_addresses_are_those_of_ipv4_and_ipv6_with_their_lengths() {
        for block in ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8", "::/0"] {
            assert_eq!(cidr(block), Ok(block.to_owned()));
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0/8", "fd00::/129", "example.com/8", ""] {
            let error = format!("`{text}` is not a block of addresses, such as 10.0.0.0/8");
            assert_eq!(cidr(text), Err(error));
        }
    }
}
