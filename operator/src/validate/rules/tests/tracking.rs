//! Rules of trackers.

use serde_json::json;

use super::problems_with;

#[test]
fn tracking_has_a_tracker() {
    let receiver = json!({"openTelemetry": {"endpoint": "http://collector:4318"}});
    assert_eq!(problems_with(&json!({"tracking": receiver})), Vec::<String>::new());
    assert_eq!(
        problems_with(&json!({"tracking": {}})),
        ["spec.tracking: set mlflow, openTelemetry or both"]
    );
}

#[test]
fn the_endpoint_of_a_receiver_has_no_path_of_traces() {
    let of = |endpoint: &str| {
        problems_with(&json!({"tracking": {"openTelemetry": {"endpoint": endpoint}}}))
    };
    let expected = "spec.tracking.openTelemetry.endpoint: must not end in /v1/traces: the \
        coordinator appends this path; leave it out";
    for endpoint in ["http://collector:4318/v1/traces", "https://otlp.lab/tempo/v1/traces/"] {
        assert_eq!(of(endpoint), [expected]);
    }
    for endpoint in ["http://collector:4318/", "https://otlp.lab/tempo", "https://otlp.lab/v1"] {
        assert_eq!(of(endpoint), Vec::<String>::new());
    }
}
