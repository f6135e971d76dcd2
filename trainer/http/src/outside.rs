//! Servers outside the job: rewards, tools, environments, teachers, trackers, the Hugging Face Hub
//! and buckets. Their authorities are those of webpki-roots, because an image may contain none, and
//! those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR` if they are set.
//!
//! A certificate of another authority is no outage: no later request succeeds.

use std::env;
use std::error::Error;
use std::io;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::identity::provider;

/// Variables with the certificates of further authorities.
const VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Error of webpki for an authority's certificate that a server presents as its own. rustls has no
/// variant for it.
const AUTHORITY_AS_SERVER: &str = "CaUsedAsEndEntity";
/// How users add an authority.
const UNKNOWN: &str = "the authority of the server's certificate is not trusted: name a file with \
    the authority's certificate in SSL_CERT_FILE (docs/security.md)";
const OWN: &str = "the certificate of the server is that of an authority, or is self-signed: \
    give the server a certificate that an authority has signed (docs/security.md)";

/// Certificates that `SSL_CERT_FILE` or `SSL_CERT_DIR` name and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the certificates of {variables}: {cause}")]
pub struct AuthoritiesError {
    /// The variables with their values.
    variables: String,
    cause: String,
}

/// Authorities of this process, read once.
struct Authorities {
    store: Arc<RootCertStore>,
    /// Those of the system or of the variables.
    local: Vec<CertificateDer<'static>>,
    checked: Result<(), AuthoritiesError>,
}

static AUTHORITIES: LazyLock<Authorities> = LazyLock::new(|| {
    let set = VARIABLES
        .iter()
        .filter_map(|name| Some(format!("{name}={}", env::var_os(name)?.to_string_lossy())));
    let variables = set.collect::<Vec<_>>().join(" and ");
    Authorities::new(rustls_native_certs::load_native_certs(), variables)
});

impl Authorities {
    /// `variables` are those that are set; without any, the system's certificates are optional.
    fn new(loaded: rustls_native_certs::CertificateResult, variables: String) -> Self {
        let mut store: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        // Files of systems contain certificates that TLS libraries do not accept.
        let usable = |certificate: &CertificateDer<'static>| store.add(certificate.clone()).is_ok();
        let local: Vec<_> = loaded.certs.into_iter().filter(usable).collect();
        let cause = match loaded.errors.first() {
            Some(error) => Some(error.to_string()),
            None => local.is_empty().then(|| "they have no certificate of an authority".to_owned()),
        };
        let checked = match cause.filter(|_| !variables.is_empty()) {
            Some(cause) => Err(AuthoritiesError { variables, cause }),
            None => Ok(()),
        };
        Self { store: Arc::new(store), local, checked }
    }
}

/// Checks the certificates that the environment names. Clients of processes that did not check them
/// trust those that can be read.
///
/// # Errors
/// [`AuthoritiesError`].
pub fn check_authorities() -> Result<(), AuthoritiesError> {
    AUTHORITIES.checked.clone()
}

/// TLS of a client of servers outside the job.
///
/// # Errors
/// The TLS library supports no version of the protocol.
pub fn outside_tls() -> Result<ClientConfig, rustls::Error> {
    tls(Arc::clone(&AUTHORITIES.store))
}

fn tls(store: Arc<RootCertStore>) -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
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

/// Certificates of the system's authorities, or of those that the environment names.
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
