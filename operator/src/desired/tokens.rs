//! Tokens and certificates of a job. They are derived from a key, so that the operator need not
//! read Secrets.
//!
//! `token = HMAC-SHA256(operator's key, "rljob token 1" 0 UID 0 role)`, as hexadecimal digits.
//! Seeds of certificates are derived likewise from "rljob tls 1". All differ by job, role and key.

use std::fmt;

use hmac::{Hmac, Mac};
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER, TOKEN_OPERATOR};
use sha2::Sha256;
use sha2::digest::Output;

use super::certificates::Certificates;

/// Minimum length of a key in bytes.
const KEY_BYTES: usize = 32;

/// The key that tokens are derived from.
#[derive(Clone)]
pub struct TokenKey(Hmac<Sha256>);

/// Error of a short key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the token key has {0} bytes; it needs at least {KEY_BYTES}")]
pub struct ShortKey(usize);

impl TokenKey {
    /// Creates a key.
    ///
    /// # Errors
    /// [`ShortKey`] below 32 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, ShortKey> {
        let short = || ShortKey(bytes.len());
        if bytes.len() < KEY_BYTES {
            return Err(short());
        }
        // HMAC accepts keys of any length, so this error cannot occur.
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| short())
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// The tokens and certificates of a job.
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
    /// TLS between the processes.
    pub certificates: Certificates,
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
            certificates: Certificates::derive(uid, |name| {
                mac(key, "rljob tls 1", uid, name).into()
            }),
        }
    }

    /// Placeholders for `rljob render`.
    pub fn placeholders() -> Self {
        let token = || "derived-by-the-operator".to_owned();
        Self {
            operator: token(),
            learner: token(),
            engine_api: token(),
            engine_admin: token(),
            certificates: Certificates::placeholders(&token()),
        }
    }
}

fn derive(key: &TokenKey, uid: &str, role: &str) -> String {
    format!("{:x}", mac(key, "rljob token 1", uid, role))
}

fn mac(key: &TokenKey, label: &str, uid: &str, role: &str) -> Output<Sha256> {
    let mut mac = key.0.clone();
    for part in [label, "\0", uid, "\0", role] {
        mac.update(part.as_bytes());
    }
    mac.finalize().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_reproducible_and_differ_by_key_job_and_role() {
        let key = |byte| TokenKey::new(&[byte; 32]).unwrap();
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
        let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), "uid");
        assert_eq!(
            tokens.operator,
            "9ad1f50173080b6dcda4804d909b3877b9d61252246d058da7d08d5bcbb8a918"
        );
    }

    #[test]
    fn short_keys_are_rejected_and_keys_are_not_printed() {
        assert_eq!(TokenKey::new(&[0; 31]).unwrap_err(), ShortKey(31));
        assert_eq!(
            format!("{:?}", Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), "uid")),
            "Tokens(…)"
        );
    }
}
