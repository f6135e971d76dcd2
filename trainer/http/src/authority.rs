//! Certificate authority of a job. All keys and certificates are a function of a seed, so that the
//! operator need not store or read them.
//!
//! ```text
//!  seed ─▶ key of the authority ─▶ its certificate ─┐
//!      └─▶ key of each role ─────▶ certificate ROLE.UID.rljob, signed by the authority
//! ```

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::role::Role;

/// Length of a seed in bytes.
pub const SEED_BYTES: usize = 32;
/// Start of an Ed25519 private key in PKCS #8 (RFC 8410, section 7). The seed follows.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// Years of the validity. Certificates end with their job, and their keys with the operator's key.
const VALIDITY: (i32, i32) = (2025, 4096);

/// A certificate that cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a certificate of the job")]
pub struct AuthorityError(#[from] rcgen::Error);

/// The certificate authority of one job.
pub struct Authority {
    uid: String,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority of the job with this UID. Equal seeds give equal certificates.
    ///
    /// # Errors
    /// The UID cannot be part of a DNS name.
    pub fn new(uid: &str, seed: [u8; SEED_BYTES]) -> Result<Self, AuthorityError> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        parameters.distinguished_name.push(DnType::CommonName, format!("rljob {uid}"));
        set_validity(&mut parameters);
        let key = key(seed)?;
        let certificate = parameters.self_signed(&key)?.pem();
        Ok(Self { uid: uid.to_owned(), certificate, issuer: Issuer::new(parameters, key) })
    }

    /// PEM of a role's certificate, the authority's certificate and the role's key, in this order.
    ///
    /// # Errors
    /// The UID cannot be part of a DNS name.
    pub fn issue(&self, role: Role, seed: [u8; SEED_BYTES]) -> Result<String, AuthorityError> {
        let mut parameters = CertificateParams::new(vec![role.server_name(&self.uid)])?;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = usages(role);
        parameters
            .distinguished_name
            .push(DnType::CommonName, format!("{} {}", role.as_str(), self.uid));
        parameters.use_authority_key_identifier_extension = true;
        set_validity(&mut parameters);
        let key = key(seed)?;
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        Ok(format!("{certificate}{}{}", self.certificate, key.serialize_pem()))
    }
}

/// Roles that do not serve cannot pass for servers, nor engines and verifier pods for clients.
fn usages(role: Role) -> Vec<ExtendedKeyUsagePurpose> {
    let mut usages = Vec::new();
    if matches!(role, Role::Coordinator | Role::Inference | Role::Verifier) {
        usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if !matches!(role, Role::Inference | Role::Verifier) {
        usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    usages
}

fn set_validity(parameters: &mut CertificateParams) {
    parameters.not_before = date_time_ymd(VALIDITY.0, 1, 1);
    parameters.not_after = date_time_ymd(VALIDITY.1, 1, 1);
}

fn key(seed: [u8; SEED_BYTES]) -> Result<KeyPair, rcgen::Error> {
    let pkcs8 = [PKCS8_PREFIX.as_slice(), &seed].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(pkcs8), &PKCS_ED25519)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_a_function_of_uid_and_seeds() {
        let issue = |uid, seed: u8| {
            Authority::new(uid, [seed; 32]).unwrap().issue(Role::Coordinator, [7; 32]).unwrap()
        };
        assert_eq!(issue("uid-a", 1), issue("uid-a", 1));
        assert_ne!(issue("uid-a", 1), issue("uid-b", 1));
        assert_ne!(issue("uid-a", 1), issue("uid-a", 2));
    }
}
