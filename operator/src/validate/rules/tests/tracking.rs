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
