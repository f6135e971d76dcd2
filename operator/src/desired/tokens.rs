//! Tokens of a job. They are derived from a key, so that the operator need not read Secrets.
//!
//! `token = HMAC-SHA256(operator's key, "rljob token 1" 0 UID 0 role)`, as hexadecimal digits.
//! Tokens differ by job, role and key.

use std::fmt;

use hmac::{Hmac, Mac};
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER, TOKEN_OPERATOR};
use sha2::Sha256;

/// Minimum length of a key in bytes.
const KEY_BYTES: usize = 32;

/// The key that tokens are derived from.
#[derive(Clone)]
pub struct TokenKey(Vec<u8>);

/// Error of a short key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the token key has {0} bytes; it needs at least {KEY_BYTES}")]
pub struct ShortKey(usize);

impl TokenKey {
    /// Creates a key.
    ///
    /// # Errors
    /// [`ShortKey`] below 32 bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, ShortKey> {
        if bytes.len() < KEY_BYTES { Err(ShortKey(bytes.len())) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// The four tokens of a job.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Operator to coordinator.
    pub operator: String,
    /// Supervisors and learners to coordinator.
    pub learner: String,
    /// Coordinator to engines: generate.
    pub engine_api: String,
    /// Coordinator to engines: control.
    pub engine_admin: String,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(…)")
    }
}

impl Tokens {
    /// Derives the tokens of the job with this UID.
    pub fn derive(key: &TokenKey, uid: &str) -> Self {
        let token = |role: &str| derive(key, uid, role);
        Self {
            operator: token(TOKEN_OPERATOR),
            learner: token(TOKEN_LEARNER),
            engine_api: token(TOKEN_ENGINE_API),
            engine_admin: token(TOKEN_ENGINE_ADMIN),
        }
    }

    /// Placeholders for `rljob render`.
    pub fn placeholders() -> Self {
        let token = || "derived-by-the-operator".to_owned();
        Self { operator: token(), learner: token(), engine_api: token(), engine_admin: token() }
    }
}

fn derive(key: &TokenKey, uid: &str, role: &str) -> String {
    // HMAC accepts keys of any length, so this error cannot occur. Servers reject empty tokens.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key.0) else { return String::new() };
    for part in ["rljob token 1", "\0", uid, "\0", role] {
        mac.update(part.as_bytes());
    }
    format!("{:x}", mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_reproducible_and_differ_by_key_job_and_role() {
        let key = |byte| TokenKey::new(vec![byte; 32]).unwrap();
        let tokens = Tokens::derive(&key(1), "uid-a");
        assert_eq!(tokens, Tokens::derive(&key(1), "uid-a"));
        let others =
            [&tokens, &Tokens::derive(&key(2), "uid-a"), &Tokens::derive(&key(1), "uid-b")].map(
                |t| [&t.operator, &t.learner, &t.engine_api, &t.engine_admin].map(Clone::clone),
            );
        let distinct: std::collections::BTreeSet<String> = others.into_iter().flatten().collect();
        assert_eq!(distinct.len(), 12);
        assert!(distinct.iter().all(|token| token.len() == 64));
    }

    #[test]
    fn tokens_equal_the_hmac_of_openssl() {
        // printf 'rljob token 1\0uid\0operator' | openssl dgst -sha256 -mac HMAC -macopt
        // hexkey:$(printf '07%.0s' $(seq 32))
        let tokens = Tokens::derive(&TokenKey::new(vec![7; 32]).unwrap(), "uid");
        assert_eq!(
            tokens.operator,
            "9ad1f50173080b6dcda4804d909b3877b9d61252246d058da7d08d5bcbb8a918"
        );
    }

    #[test]
    fn short_keys_are_rejected_and_keys_are_not_printed() {
        assert_eq!(TokenKey::new(vec![0; 31]).unwrap_err(), ShortKey(31));
        assert_eq!(
            format!("{:?}", Tokens::derive(&TokenKey::new(vec![7; 32]).unwrap(), "uid")),
            "Tokens(…)"
        );
    }
}
