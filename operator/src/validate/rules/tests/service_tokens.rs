//! Rules of tokens for servers outside the job.

use serde_json::json;

use super::problems_with;

#[test]
fn a_server_with_a_token_has_no_user_in_its_url() {
    let with = |url: &str| {
        let http = json!({"url": url, "tokenSecretRef": {"name": "judge"}});
        problems_with(&json!({"rewards": [{"name": "judge", "http": http}]}))
    };
    assert_eq!(with("https://judge.lab/a@b?to=c@d"), Vec::<String>::new());
    let problem = "spec.rewards[0].http.url: must not contain a user beside tokenSecretRef: both \
        set the header Authorization";
    for url in ["https://user:password@judge.lab", "https://user@judge.lab?x"] {
        assert_eq!(with(url), [problem]);
    }
}
