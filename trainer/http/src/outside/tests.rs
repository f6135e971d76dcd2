//! Servers with certificates of several authorities.

use std::net::SocketAddr;
use std::path::Path;

use axum::http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls_native_certs::{CertificateResult, load_certs_from_paths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A certificate with its key.
struct Pair {
    name: &'static str,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

fn authority_parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
}

fn authority(name: &'static str) -> Pair {
    let key = KeyPair::generate().unwrap();
    let certificate = authority_parameters(name).self_signed(&key).unwrap().der().clone();
    Pair { name, certificate, key }
}

fn signed_by(authority: &Pair) -> Pair {
    let issuer = Issuer::new(authority_parameters(authority.name), &authority.key);
    let parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap().der().clone();
    Pair { name: "server", certificate, key }
}

async fn serve(Pair { certificate, key, .. }: &Pair) -> SocketAddr {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 1024]).await;
            let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    address
}

fn trusting(certificates: Vec<CertificateDer<'static>>) -> Authorities {
    let mut loaded = CertificateResult::default();
    loaded.certs = certificates;
    Authorities::new(loaded, "SSL_CERT_FILE=/ca.crt".to_owned())
}

async fn get(authorities: &Authorities, server: &Pair) -> reqwest::Result<StatusCode> {
    let address = serve(server).await;
    let tls = tls(Arc::clone(&authorities.store)).unwrap();
    let builder = reqwest::Client::builder().use_preconfigured_tls(tls);
    let client = builder.resolve("localhost", address).no_proxy().build().unwrap();
    let response = client.get(format!("https://localhost:{}/", address.port())).send().await;
    response.map(|response| response.status())
}

#[tokio::test]
async fn servers_of_further_authorities_are_trusted_and_others_are_no_outages() {
    let [own, other, namesake] = ["own", "other", "own"].map(authority);
    let authorities = trusting(vec![own.certificate.clone()]);
    assert_eq!(authorities.checked, Ok(()));
    assert_eq!(authorities.local, std::slice::from_ref(&own.certificate));
    assert_eq!(get(&authorities, &signed_by(&own)).await.unwrap(), StatusCode::NO_CONTENT);
    for (server, expected) in
        [(signed_by(&other), UNKNOWN), (signed_by(&namesake), UNKNOWN), (own, OWN)]
    {
        let error = get(&authorities, &server).await.unwrap_err();
        assert_eq!(untrusted(&error), Some(expected), "{error:?}");
    }
    let refused = reqwest::Client::builder().no_proxy().build().unwrap();
    let refused = refused.get("https://127.0.0.1:1/").send().await.unwrap_err();
    assert_eq!(untrusted(&refused), None, "an outage");
}

#[test]
fn certificates_that_the_environment_names_must_be_usable() {
    let folder = tempfile::tempdir().unwrap();
    let cause = |path: &Path| {
        let loaded = load_certs_from_paths(Some(path), None);
        let checked = Authorities::new(loaded, format!("SSL_CERT_FILE={}", path.display())).checked;
        checked.map_err(|error| error.to_string())
    };
    let path = folder.path().join("ca.crt");
    let start = format!("failed to read the certificates of SSL_CERT_FILE={}: ", path.display());
    let missing = cause(&path).unwrap_err();
    assert!(missing.starts_with(&start) && missing.contains("No such file"), "{missing}");
    std::fs::write(&path, "").unwrap();
    let empty = cause(&path).unwrap_err();
    assert!(empty.starts_with(&start), "{empty}");

    let loaded = load_certs_from_paths(Some(&path), None);
    assert_eq!(Authorities::new(loaded, String::new()).checked, Ok(()), "those of the system");
}
