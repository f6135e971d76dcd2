//! Certificate, key and trusted authority of a process, as [`crate::Authority::issue`] writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;

/// Time after which the file is read again, because the operator's key may be rotated.
const REREAD: Duration = Duration::from_secs(10);

/// A certificate and key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to read `{}`", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The text is not a certificate, its authority and its key.
    #[error("the certificate and key are invalid: {0}")]
    Invalid(String),
}

/// Parsed certificate and key, with verifiers of peers.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) servers: Arc<WebPkiServerVerifier>,
    pub(crate) clients: Arc<dyn ClientCertVerifier>,
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Identity {
    pub(crate) fn parse(pem: &[u8]) -> Result<Self, TlsError> {
        let invalid = |error: &dyn std::fmt::Display| TlsError::Invalid(error.to_string());
        let certificates = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(&error))?;
        let [own, authority] = <[_; 2]>::try_from(certificates)
            .map_err(|found| invalid(&format!("{} certificates instead of 2", found.len())))?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| invalid(&error))?;
        let key = any_supported_type(&key).map_err(|error| invalid(&error))?;
        let key = CertifiedKey::new(vec![own], key);
        key.keys_match().map_err(|error| invalid(&error))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| invalid(&error))?;
        let roots = Arc::new(roots);
        let servers =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider()).build();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        Ok(Self {
            key: Arc::new(key),
            servers: servers.map_err(|error| invalid(&error))?,
            clients: clients.map_err(|error| invalid(&error))?,
        })
    }
}

/// An identity in memory, or in a file that is read again when it changes.
#[derive(Debug)]
pub(crate) struct Source {
    path: Option<PathBuf>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    read: Instant,
    pem: Vec<u8>,
    identity: Arc<Identity>,
}

impl Source {
    pub(crate) fn of_file(path: &Path) -> Result<Self, TlsError> {
        let read = std::fs::read(path);
        let pem = read.map_err(|error| TlsError::Read(path.to_owned(), error))?;
        Ok(Self { path: Some(path.to_owned()), ..Self::of_pem(pem)? })
    }

    pub(crate) fn of_pem(pem: Vec<u8>) -> Result<Self, TlsError> {
        let identity = Arc::new(Identity::parse(&pem)?);
        Ok(Self {
            path: None,
            current: Mutex::new(Current { read: Instant::now(), pem, identity }),
        })
    }

    /// The identity in the file. The previous one if the file cannot be used.
    pub(crate) fn get(&self) -> Arc<Identity> {
        let mut current = self.current.lock();
        if let Some(path) = self.path.as_ref().filter(|_| current.read.elapsed() > REREAD) {
            current.read = Instant::now();
            match std::fs::read(path) {
                Ok(pem) if pem == current.pem => {}
                Ok(pem) => match Identity::parse(&pem) {
                    Ok(identity) => (current.pem, current.identity) = (pem, Arc::new(identity)),
                    Err(error) => tracing::warn!(%error, path = %path.display(),
                        "failed to use a new certificate; using the previous one"),
                },
                Err(error) => tracing::warn!(%error, path = %path.display(),
                    "failed to reread a certificate; using the previous one"),
            }
        }
        Arc::clone(&current.identity)
    }

    #[cfg(test)]
    pub(crate) fn expire(&self) {
        if let Some(earlier) = Instant::now().checked_sub(REREAD * 2) {
            self.current.lock().read = earlier;
        }
    }
}

/// Signature schemes of both verifiers.
pub(crate) fn schemes(identity: &Identity) -> Vec<rustls::SignatureScheme> {
    ServerCertVerifier::supported_verify_schemes(&*identity.servers)
}
