//! Certificates of a job's roles. Like the tokens, they are derived from the operator's key.

use std::fmt;
use std::sync::Arc;

use rljob_http::{Authority, AuthorityError, Role, SEED_BYTES};

/// Name of the authority in seeds.
const AUTHORITY: &str = "authority";

/// Certificate and key of each role, as PEM with the certificate of the job's authority.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates([Arc<str>; 5]);

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(…)")
    }
}

impl Certificates {
    /// Derives the certificates of the job with this UID. `seed` maps names to secret bytes.
    pub(super) fn derive(uid: &str, seed: impl Fn(&str) -> [u8; SEED_BYTES]) -> Self {
        // UIDs of API servers are labels of DNS names, so this error cannot occur. Processes reject
        // an empty certificate.
        Self::issue(uid, seed).unwrap_or_else(|_| Self::placeholders(""))
    }

    fn issue(uid: &str, seed: impl Fn(&str) -> [u8; SEED_BYTES]) -> Result<Self, AuthorityError> {
        let authority = Authority::new(uid, seed(AUTHORITY))?;
        let issue = |role: Role| authority.issue(role, seed(role.as_str())).map(Arc::from);
        let [operator, coordinator, trainer, inference, verifier] = Role::ALL.map(issue);
        Ok(Self([operator?, coordinator?, trainer?, inference?, verifier?]))
    }

    pub(super) fn placeholders(text: &str) -> Self {
        Self([(); 5].map(|()| Arc::from(text)))
    }

    /// Certificate and key of a role.
    pub fn of(&self, role: Role) -> &Arc<str> {
        let Self([operator, coordinator, trainer, inference, verifier]) = self;
        match role {
            Role::Operator => operator,
            Role::Coordinator => coordinator,
            Role::Trainer => trainer,
            Role::Inference => inference,
            Role::Verifier => verifier,
        }
    }
}
