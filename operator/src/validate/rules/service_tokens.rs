//! Rules of tokens for servers outside the job.

use rljob_crds::RLJobSpec;

use crate::validate::Problem;

/// A request has one header `Authorization`: user and password in a URL would be a second one.
pub(super) fn check_urls(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    for token in spec.service_tokens().into_iter().filter(|token| has_user(token.url)) {
        let message = "must not contain a user beside tokenSecretRef: both set the header \
            Authorization";
        problems.push(Problem::new(format!("{}.url", token.field), message));
    }
}

fn has_user(url: &str) -> bool {
    let after = url.split_once("://").map_or(url, |(_, after)| after);
    after.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}
