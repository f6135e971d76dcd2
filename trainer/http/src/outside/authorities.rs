//! Authorities of servers outside the job: those of the files that the environment names are read
//! again when the files change, so that a renewed authority needs no restart.

use std::env;
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_native_certs::CertificateResult;

use crate::identity::provider;

/// Variables with the certificates of further authorities.
const VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Certificates that `SSL_CERT_FILE` or `SSL_CERT_DIR` name and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the certificates of {variables}: {cause}")]
pub struct AuthoritiesError {
    /// The variables with their values.
    variables: String,
    cause: String,
}

/// Authorities of this process.
pub struct Authorities {
    /// The variables that are set, with their values.
    variables: String,
    /// Files and folders of the variables. Without any, the certificates of the system are read
    /// once, and they are optional.
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> CertificateResult + Send + Sync>,
    /// Those of the system or of the variables at the start.
    pub local: Vec<CertificateDer<'static>>,
    pub checked: Result<(), AuthoritiesError>,
    current: Mutex<Current>,
}

struct Current {
    states: Vec<FileState>,
    store: Arc<RootCertStore>,
}

/// Seconds and nanoseconds of the last change, size and inode; `None` for a missing file.
type FileState = Option<(i64, i64, u64, u64)>;

impl Authorities {
    /// Reads the certificates of the system, or of the variables that are set.
    pub fn of_environment() -> Self {
        let set = VARIABLES.iter().filter_map(|name| Some((*name, env::var_os(name)?)));
        let set: Vec<_> = set.collect();
        let variables = set.iter().map(|(name, value)| format!("{name}={}", value.display()));
        let variables = variables.collect::<Vec<_>>().join(" and ");
        let paths = set.iter().flat_map(|(_, value)| env::split_paths(value)).collect();
        Self::new(variables, paths, rustls_native_certs::load_native_certs)
    }

    /// `load` reads the certificates of `paths`, which are those of `variables`.
    pub fn new(
        variables: String,
        paths: Vec<PathBuf>,
        load: impl Fn() -> CertificateResult + Send + Sync + 'static,
    ) -> Self {
        let states = states(&paths);
        let (store, local, cause) = read(load());
        let checked = match cause.filter(|_| !variables.is_empty()) {
            Some(cause) => Err(AuthoritiesError { variables: variables.clone(), cause }),
            None => Ok(()),
        };
        let current = Mutex::new(Current { states, store: Arc::new(store) });
        Self { variables, paths, load: Box::new(load), local, checked, current }
    }

    /// The trusted authorities. A changed file is read again; one that cannot be used changes
    /// nothing.
    fn store(&self) -> Arc<RootCertStore> {
        let mut current = self.current.lock();
        let states = states(&self.paths);
        if states != current.states {
            current.states = states;
            let (store, local, cause) = read((self.load)());
            let (variables, count) = (&self.variables, local.len());
            match cause {
                None => {
                    tracing::info!(variables, count, "read changed certificates of authorities");
                    current.store = Arc::new(store);
                }
                Some(cause) => {
                    tracing::warn!(variables, cause, "failed to read certificates of authorities");
                }
            }
        }
        Arc::clone(&current.store)
    }

    fn verifier(&self) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        WebPkiServerVerifier::builder_with_provider(self.store(), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))
    }
}

/// All trusted authorities, those of the files, and why the files cannot be used.
fn read(
    loaded: CertificateResult,
) -> (RootCertStore, Vec<CertificateDer<'static>>, Option<String>) {
    let mut store: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    // Files of systems contain certificates that TLS libraries do not accept.
    let usable = |certificate: &CertificateDer<'static>| store.add(certificate.clone()).is_ok();
    let local: Vec<_> = loaded.certs.into_iter().filter(usable).collect();
    let cause = match loaded.errors.first() {
        Some(error) => Some(error.to_string()),
        None => local.is_empty().then(|| "they have no certificate of an authority".to_owned()),
    };
    (store, local, cause)
}

/// States of the files, links followed: kubelets replace a link when a ConfigMap changes.
fn states(paths: &[PathBuf]) -> Vec<FileState> {
    let state = |file: Metadata| (file.mtime(), file.mtime_nsec(), file.size(), file.ino());
    paths.iter().map(|path| fs::metadata(path).ok().map(state)).collect()
}

/// Verifies the certificate of a server with the authorities of that time.
pub struct CurrentAuthorities(pub Arc<Authorities>);

impl fmt::Debug for CurrentAuthorities {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("CurrentAuthorities").field(&self.0.variables).finish()
    }
}

impl ServerCertVerifier for CurrentAuthorities {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = self.0.verifier()?;
        verifier.verify_server_cert(certificate, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
