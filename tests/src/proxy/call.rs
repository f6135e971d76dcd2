//! A request to the API server, by what it does to which object.

use std::fmt;

use axum::http::{Method, Uri};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object or a list.
    Read,
    /// The changes from a version on.
    Watch,
    /// POST, or an apply that made the object.
    Create,
    /// PUT.
    Update,
    /// PATCH of an object that was there.
    Patch,
    /// DELETE.
    Delete,
}

/// A request, before it is answered: an apply is a [`Verb::Patch`], whether it will make the object
/// or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub verb: Verb,
    /// Plural, for example `statefulsets`; empty for what is no object, as `/version`.
    pub resource: String,
    /// Empty for lists over all namespaces and for what is in none.
    pub namespace: String,
    /// Empty for lists and for a POST.
    pub name: String,
    /// `status`, `scale`, …, or empty.
    pub subresource: String,
}

impl Call {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Self {
        let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let rest = match parts[..] {
            ["api", _, ref rest @ ..] | ["apis", _, _, ref rest @ ..] => rest,
            _ => &[],
        };
        let (namespace, rest) = match *rest {
            // The namespace itself has no part after its name.
            ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let asks = |pairs: &[&str]| {
            uri.query().is_some_and(|query| query.split('&').any(|pair| pairs.contains(&pair)))
        };
        let watches = asks(&["watch=true", "watch=1", "watch"]);
        let verb = match *method {
            // It tells what would be, and changes nothing.
            _ if asks(&["dryRun=All"]) => Verb::Read,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if watches => Verb::Watch,
            _ => Verb::Read,
        };
        Self {
            verb,
            resource: part(0),
            namespace: namespace.to_owned(),
            name: part(1),
            subresource: part(2),
        }
    }

    /// Whether it changes an object of a job, or tells of one. Leases are renewed all the time.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, Verb::Read | Verb::Watch) && self.resource != "leases"
    }

    /// Whether it writes an object of this resource, or a part of it.
    pub fn writes(&self, resource: &str) -> bool {
        self.is_write() && self.resource == resource
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, resource, namespace: _, name, subresource } = self;
        write!(f, "{verb:?} {resource}/{name}")?;
        if subresource.is_empty() { Ok(()) } else { write!(f, "/{subresource}") }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Verb};

    #[test]
    fn a_call_is_what_its_line_says() {
        for (method, line, verb, [resource, namespace, name, subresource]) in [
            ("GET", "/version", Verb::Read, ["", "", "", ""]),
            ("GET", "/api/v1/pods?labelSelector=a", Verb::Read, ["pods", "", "", ""]),
            ("GET", "/api/v1/namespaces/lab", Verb::Read, ["namespaces", "", "lab", ""]),
            (
                "GET",
                "/apis/rljob.dev/v1alpha1/rljobs?watch=true&resourceVersion=7",
                Verb::Watch,
                ["rljobs", "", "", ""],
            ),
            (
                "PUT",
                "/apis/rljob.dev/v1alpha1/namespaces/lab/rljobs/sums/status",
                Verb::Update,
                ["rljobs", "lab", "sums", "status"],
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/lab/statefulsets/sums-trainer?force=true",
                Verb::Patch,
                ["statefulsets", "lab", "sums-trainer", ""],
            ),
            (
                "POST",
                "/apis/events.k8s.io/v1/namespaces/lab/events",
                Verb::Create,
                ["events", "lab", "", ""],
            ),
        ] {
            let seen = Call::parse(&method.parse().unwrap(), &line.parse().unwrap());
            let [resource, namespace, name, subresource] =
                [resource, namespace, name, subresource].map(str::to_owned);
            assert_eq!(
                seen,
                Call { verb, resource, namespace, name, subresource },
                "{method} {line}"
            );
        }
    }
}
