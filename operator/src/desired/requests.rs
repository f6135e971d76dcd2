//! Resources that the scheduler reserves for a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::quantity::{quantity, thousandths};

/// Thousandths by resource.
pub(crate) type Requests = BTreeMap<String, i128>;

/// Requests of a pod: of its containers and sidecars together, or of its largest init container if
/// that is more; and its overhead. A limit without a request is a request.
pub(crate) fn of_pod(pod: &PodSpec) -> Requests {
    let (mut total, mut largest) = (Requests::new(), Requests::new());
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    for container in pod.init_containers.iter().flatten() {
        let requests = of_container(container);
        if is_sidecar(container) {
            add(&mut total, &requests, 1);
        } else {
            raise(&mut largest, &requests);
        }
    }
    for container in &pod.containers {
        add(&mut total, &of_container(container), 1);
    }
    raise(&mut total, &largest);
    let overhead = pod.overhead.iter().flatten();
    let overhead = overhead.filter_map(|(name, amount)| Some((name.clone(), thousandths(amount)?)));
    add(&mut total, &overhead.collect(), 1);
    total
}

fn of_container(container: &Container) -> Requests {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let all = limits.into_iter().flatten().chain(requests.into_iter().flatten());
    all.filter_map(|(name, amount)| Some((name.clone(), thousandths(amount)?))).collect()
}

/// Adds `count` times the requests.
pub(crate) fn add(total: &mut Requests, requests: &Requests, count: i32) {
    for (name, amount) in requests {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(amount.saturating_mul(i128::from(count)));
    }
}

fn raise(total: &mut Requests, least: &Requests) {
    for (name, amount) in least {
        let most = total.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

/// As in objects.
pub(crate) fn texts(requests: &Requests) -> BTreeMap<&str, String> {
    requests.iter().map(|(name, amount)| (name.as_str(), quantity(*amount))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn requests_are_those_of_the_scheduler() {
        let container = |requests: Value, limits: Value| {
            let resources = json!({"requests": requests, "limits": limits});
            json!({"name": "c", "resources": resources})
        };
        let pod = |init: Value| -> PodSpec {
            let containers = [
                container(json!({"cpu": "500m", "memory": "1Gi"}), json!({"memory": "2Gi"})),
                container(json!({}), json!({"nvidia.com/gpu": "4"})),
            ];
            let spec = json!({
                "containers": containers, "initContainers": init, "overhead": {"cpu": "1"},
            });
            serde_json::from_value(spec).unwrap()
        };
        let of = |init: Value| json!(texts(&of_pod(&pod(init))));
        let expected = json!({"cpu": "1500m", "memory": "1073741824", "nvidia.com/gpu": "4"});
        assert_eq!(of(json!([])), expected);
        let first = container(json!({"cpu": "2", "memory": "1Mi"}), json!({}));
        let expected = json!({"cpu": "3", "memory": "1073741824", "nvidia.com/gpu": "4"});
        assert_eq!(of(json!([first])), expected, "an init container runs before the others");
        let mut sidecar = first;
        sidecar["restartPolicy"] = json!("Always");
        let expected = json!({"cpu": "3500m", "memory": "1074790400", "nvidia.com/gpu": "4"});
        assert_eq!(of(json!([sidecar])), expected);
    }
}
