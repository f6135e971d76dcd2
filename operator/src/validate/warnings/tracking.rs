//! Receivers of traces that get none.

use reqwest::Url;
use rljob_crds::RLJobSpec;

use crate::validate::Problem;

/// Port of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;

/// A receiver of a job without steps, and one at the port of another protocol.
pub(super) fn check_tracking(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let tracking = spec.tracking.as_ref();
    let Some(receiver) = tracking.and_then(|tracking| tracking.open_telemetry.as_ref()) else {
        return;
    };
    let path = "spec.tracking.openTelemetry";
    if !spec.algorithm.has_learners() {
        let message = "has no effect: an evaluation has no steps, and traces are those of steps";
        warnings.push(Problem::new(path, message));
        return;
    }
    if Url::parse(&receiver.endpoint).is_ok_and(|url| url.port() == Some(GRPC_PORT)) {
        let message =
            format!("{GRPC_PORT} is the port of OTLP over gRPC: OTLP over HTTP is usually at 4318");
        warnings.push(Problem::new(format!("{path}.endpoint"), message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::warnings;
    use crate::validate::test_support::{merge, minimal};

    fn found(change: &Value) -> Vec<String> {
        let mut spec = serde_json::to_value(minimal().spec).unwrap();
        merge(&mut spec, change);
        let spec = serde_json::from_value(spec).unwrap();
        warnings(&spec).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_port_of_grpc_is_named() {
        let of =
            |endpoint: &str| found(&json!({"tracking": {"openTelemetry": {"endpoint": endpoint}}}));
        let expected = "spec.tracking.openTelemetry.endpoint: 4317 is the port of OTLP over gRPC: \
            OTLP over HTTP is usually at 4318";
        assert_eq!(of("http://collector:4317"), [expected]);
        assert_eq!(of("https://[::1]:4317/tempo"), [expected]);
        assert_eq!(of("http://collector:4318"), Vec::<String>::new());
        assert_eq!(of("https://otlp.lab/4317"), Vec::<String>::new());
    }

    #[test]
    fn an_evaluation_has_no_traces_to_send() {
        let receiver = json!({"endpoint": "http://collector:4317"});
        let change = json!({
            "algorithm": {"grpo": null, "evaluation": {}},
            "tracking": {"openTelemetry": receiver},
        });
        let expected = "spec.tracking.openTelemetry: has no effect: an evaluation has no steps, \
            and traces are those of steps";
        let found = found(&change);
        assert!(found.iter().any(|warning| warning == expected), "{found:?}");
        assert!(!found.iter().any(|warning| warning.contains("4317")), "{found:?}");
    }
}
