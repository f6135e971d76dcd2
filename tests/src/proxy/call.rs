//! Requests to the API server, parsed to verb and object.

use std::fmt;

use axum::http::{Method, Uri};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// GET of an object or list.
    Read,
    /// GET with `watch=true`.
    Watch,
    /// POST, or an apply that created the object.
    Create,
    /// PUT.
    Update,
    /// PATCH of an existing object.
    Patch,
    /// DELETE.
    Delete,
}

/// A request before its response is known: every apply is a [`Verb::Patch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    /// Plural, for example `statefulsets`; empty for non-resource paths such as `/version`.
    pub resource: String,
    /// Empty for cluster-wide lists and cluster-scoped objects.
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
            // A namespace object has no further path segment.
            ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let has_parameter = |pairs: &[&str]| {
            uri.query().is_some_and(|query| query.split('&').any(|pair| pairs.contains(&pair)))
        };
        let watches = has_parameter(&["watch=true", "watch=1", "watch"]);
        let verb = match *method {
            // A dry run changes nothing.
            _ if has_parameter(&["dryRun=All"]) => Verb::Read,
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

    /// Whether the request writes an object. Leases are excluded because they are renewed
    /// continuously.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, Verb::Read | Verb::Watch) && self.resource != "leases"
    }

    /// Whether the request writes an object of this resource or one of its subresources.
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
    fn request_lines_are_parsed_to_verb_and_object() {
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
