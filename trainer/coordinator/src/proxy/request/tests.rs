//! Tests of the requests of agents.

use super::*;

#[test]
fn a_reward_may_name_a_completion() {
    let id = CompletionId { id: "c".to_owned(), choice: 2 };
    let body = br#"{"reward": 0.5, "completion": "c", "choice": 2}"#;
    assert_eq!(reward(body), Ok((0.5, Some(id))));
    assert_eq!(reward(br#"{"reward": 1}"#), Ok((1.0, None)));
    for body in [&b"{}"[..], br#"{"reward": "1"}"#, br#"{"reward": 1, "turn": 1}"#, b""] {
        assert!(matches!(reward(body), Err(ProxyError::Json(_))));
    }
    let error = reward(br#"{"reward": -1e31}"#).unwrap_err();
    assert_eq!(error.to_string(), "reward: must be between -1e30 and 1e30");
    assert_eq!(finish(b"{}"), Ok(None));
}
