//! Servers outside the job: rewards, tools, environments, teachers, trackers, the Hugging Face Hub
//! and buckets. Their authorities are those of webpki-roots, because an image may contain none, and
//! those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR` if they are set.
//!
//! A certificate of another authority is no outage: no later request succeeds.

mod authorities;

use std::error::Error;
use std::io;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, ClientConfig};

pub use self::authorities::AuthoritiesError;
use self::authorities::{Authorities, CurrentAuthorities};
use crate::identity::provider;

/// Error of webpki for an authority's certificate that a server presents as its own. rustls has no
/// variant for it.
const AUTHORITY_AS_SERVER: &str = "CaUsedAsEndEntity";
/// How users add an authority.
const UNKNOWN: &str = "the authority of the server's certificate is not trusted: name a file with \
    the authority's certificate in SSL_CERT_FILE (docs/security.md)";
const OWN: &str = "the certificate of the server is that of an authority, or is self-signed: \
    give the server a certificate that an authority has signed (docs/security.md)";

static AUTHORITIES: LazyLock<Arc<Authorities>> =
    LazyLock::new(|| Arc::new(Authorities::of_environment()));

/// Checks the certificates that the environment names. Clients of processes that did not check them
/// trust those that can be read.
///
/// # Errors
/// [`AuthoritiesError`].
pub fn check_authorities() -> Result<(), AuthoritiesError> {
    AUTHORITIES.checked.clone()
}

/// TLS of a client of servers outside the job. It trusts the authorities of changed files without a
/// restart.
///
/// # Errors
/// The TLS library supports no version of the protocol.
pub fn outside_tls() -> Result<ClientConfig, rustls::Error> {
    tls(Arc::clone(&AUTHORITIES))
}

fn tls(authorities: Arc<Authorities>) -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(CurrentAuthorities(authorities)))
        .with_no_client_auth())
}

/// Builder of a client of servers outside the job.
pub fn outside_client() -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder();
    match outside_tls() {
        Ok(tls) => builder.use_preconfigured_tls(tls),
        // The builder returns its own error.
        Err(_) => builder,
    }
}

/// Certificates of the system's authorities, or of those that the environment named at the start.
pub fn local_authorities() -> &'static [CertificateDer<'static>] {
    &AUTHORITIES.local
}

/// What to do about a request that failed because the server's authority is not trusted.
pub fn untrusted(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidCertificate(invalid)) = error.downcast_ref() {
            return match invalid {
                // Bad signature: another authority with the name of a trusted one.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Some(UNKNOWN),
                CertificateError::Other(other) => {
                    format!("{other:?}").contains(AUTHORITY_AS_SERVER).then_some(OWN)
                }
                _ => None,
            };
        }
        // The source of an I/O error is that of the error within.
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = within.map(|error| error as _).or_else(|| error.source());
    }
    None
}

#[cfg(test)]
mod tests;
