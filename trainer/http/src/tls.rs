//! Mutual TLS 1.3 between the processes of a job. Each side proves its role with a certificate of
//! the job's authority before the other sends a byte of a request or of a response.
//!
//! The address of a peer proves nothing: a client expects a name, whatever it connects to, and a
//! server accepts the names of certain roles. Sessions are not resumed, so that a replaced
//! certificate is used for every new connection.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

use crate::identity::{Source, TlsError, provider, schemes};

/// Certificate and key of this process, and the names of its peers.
#[derive(Debug)]
struct Credentials {
    source: Source,
    peers: Vec<ServerName<'static>>,
}

/// TLS of a client that accepts one name.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

/// TLS of a server that accepts clients of certain names.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

impl ClientTls {
    /// A client with the certificate and key in a file, which is read again when it changes. It
    /// accepts servers named `server`.
    ///
    /// # Errors
    /// The file cannot be used, or `server` is not a DNS name.
    pub fn of_file(path: &Path, server: &str) -> Result<Self, TlsError> {
        Self::new(Source::of_file(path)?, server)
    }

    /// As [`Self::of_file`], with the content of the file.
    ///
    /// # Errors
    /// `pem` or `server` is invalid.
    pub fn of_pem(pem: &str, server: &str) -> Result<Self, TlsError> {
        Self::new(Source::of_pem(pem.as_bytes().to_vec())?, server)
    }

    fn new(source: Source, server: &str) -> Result<Self, TlsError> {
        let credentials = Arc::new(Credentials::new(source, &[server.to_owned()])?);
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Invalid(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&credentials) as _)
            .with_client_cert_resolver(credentials);
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), server: parse(server)? })
    }

    /// Authenticates both ends of a new connection.
    ///
    /// # Errors
    /// The server has another name, rejects this client or breaks the connection.
    pub async fn connect(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(Arc::clone(&self.config)).connect(self.server.clone(), stream).await
    }

    /// Makes a client that sends requests only to the server of this name, without proxies and
    /// redirects.
    pub fn client(&self, builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
        builder
            .use_preconfigured_tls((*self.config).clone())
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
    }
}

impl ServerTls {
    /// A server with the certificate and key in a file, which is read again when it changes. It
    /// accepts clients named as one of `clients`.
    ///
    /// # Errors
    /// The file cannot be used, or a name is not a DNS name.
    pub fn of_file(path: &Path, clients: &[String]) -> Result<Self, TlsError> {
        Self::new(Source::of_file(path)?, clients)
    }

    /// As [`Self::of_file`], with the content of the file.
    ///
    /// # Errors
    /// `pem` or a name is invalid.
    pub fn of_pem(pem: &str, clients: &[String]) -> Result<Self, TlsError> {
        Self::new(Source::of_pem(pem.as_bytes().to_vec())?, clients)
    }

    fn new(source: Source, clients: &[String]) -> Result<Self, TlsError> {
        let credentials = Arc::new(Credentials::new(source, clients)?);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Invalid(error.to_string()))?
            .with_client_cert_verifier(Arc::clone(&credentials) as _)
            .with_cert_resolver(credentials);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }

    /// Authenticates both ends of an accepted connection.
    ///
    /// # Errors
    /// The client has another name, rejects this server or breaks the connection.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config()).accept(stream).await
    }

    /// The configuration for rustls.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0)
    }
}

impl Credentials {
    fn new(source: Source, peers: &[String]) -> Result<Self, TlsError> {
        let peers = peers.iter().map(|name| parse(name)).collect::<Result<_, _>>()?;
        Ok(Self { source, peers })
    }

    fn check_name(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let is_peer = self.peers.iter().any(|name| verify_server_name(&parsed, name).is_ok());
        if is_peer { Ok(()) } else { Err(CertificateError::NotValidForName.into()) }
    }
}

fn parse(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| TlsError::Invalid(format!("`{name}` is not a DNS name")))
}

impl ResolvesClientCert for Credentials {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.source.get().key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Credentials {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.source.get().key))
    }
}

impl ServerCertVerifier for Credentials {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.peers.first().ok_or(CertificateError::NotValidForName)?;
        let servers = &self.source.get().servers;
        servers.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let servers = &self.source.get().servers;
        servers.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&self.source.get())
    }
}

impl ClientCertVerifier for Credentials {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let clients = &self.source.get().clients;
        let verified = clients.verify_client_cert(certificate, intermediates, now)?;
        self.check_name(certificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.source.get().clients.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&self.source.get())
    }
}

/// Whether a request failed because the server does not speak TLS.
pub fn is_plain_server(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref::<Error>(), Some(Error::InvalidMessage(_))) {
            return true;
        }
        // The source of an I/O error is that of the error within.
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = within.map(|error| error as _).or_else(|| error.source());
    }
    false
}
