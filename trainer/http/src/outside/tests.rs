//! Servers with certificates of several authorities.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls_native_certs::load_certs_from_paths;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A certificate with its key.
struct Pair {
    name: &'static str,
    certificate: CertificateDer<'static>,
    pem: String,
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
    let certificate = authority_parameters(name).self_signed(&key).unwrap();
    Pair { name, certificate: certificate.der().clone(), pem: certificate.pem(), key }
}

fn signed_by(authority: &Pair) -> Pair {
    let issuer = Issuer::new(authority_parameters(authority.name), &authority.key);
    let parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    Pair { name: "server", certificate: certificate.der().clone(), pem: certificate.pem(), key }
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

/// Authorities of a file.
fn of_file(path: &Path) -> Authorities {
    let (paths, path) = (vec![path.to_owned()], PathBuf::from(path));
    let variables = format!("SSL_CERT_FILE={}", path.display());
    Authorities::new(variables, paths, move || load_certs_from_paths(Some(&path), None))
}

/// A client of servers of this machine.
fn client(authorities: Authorities) -> reqwest::Client {
    let tls = tls(Arc::new(authorities)).unwrap();
    let builder = reqwest::Client::builder().use_preconfigured_tls(tls).no_proxy();
    builder.resolve("localhost", (Ipv4Addr::LOCALHOST, 0).into()).build().unwrap()
}

async fn get(client: &reqwest::Client, server: &Pair) -> reqwest::Result<StatusCode> {
    let address = serve(server).await;
    let response = client.get(format!("https://localhost:{}/", address.port())).send().await;
    response.map(|response| response.status())
}

#[tokio::test]
async fn servers_of_further_authorities_are_trusted_and_others_are_no_outages() {
    let [own, other, namesake] = ["own", "other", "own"].map(authority);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    fs::write(&path, &own.pem).unwrap();
    let authorities = of_file(&path);
    assert_eq!(authorities.checked, Ok(()));
    assert_eq!(authorities.local, std::slice::from_ref(&own.certificate));
    let client = client(authorities);
    assert_eq!(get(&client, &signed_by(&own)).await.unwrap(), StatusCode::NO_CONTENT);
    for (server, expected) in
        [(signed_by(&other), UNKNOWN), (signed_by(&namesake), UNKNOWN), (own, OWN)]
    {
        let error = get(&client, &server).await.unwrap_err();
        assert_eq!(untrusted(&error), Some(expected), "{error:?}");
    }
    let refused = reqwest::Client::builder().no_proxy().build().unwrap();
    let refused = refused.get("https://127.0.0.1:1/").send().await.unwrap_err();
    assert_eq!(untrusted(&refused), None, "an outage");
}

#[tokio::test]
async fn a_changed_file_of_authorities_is_read_again_unless_it_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    // As kubelet replaces the link of a ConfigMap.
    let write = |text: &str| {
        let part = folder.path().join("part");
        fs::write(&part, text).unwrap();
        fs::rename(&part, &path).unwrap();
    };
    let [old, new] = ["old", "new"].map(authority);
    let servers = [signed_by(&old), signed_by(&new)];
    write(&old.pem);
    let client = client(of_file(&path));
    let trusted = async || {
        let [mut is_old, mut is_new] = [false; 2];
        for (is_trusted, server) in [&mut is_old, &mut is_new].into_iter().zip(&servers) {
            *is_trusted = get(&client, server).await.is_ok();
        }
        [is_old, is_new]
    };
    assert_eq!(trusted().await, [true, false]);
    write(&format!("{}{}", old.pem, new.pem));
    assert_eq!(trusted().await, [true, true]);
    write(&new.pem);
    assert_eq!(trusted().await, [false, true]);
    write("no certificate");
    assert_eq!(trusted().await, [false, true], "a file that cannot be used");
    fs::remove_file(&path).unwrap();
    assert_eq!(trusted().await, [false, true], "no file");
    write(&old.pem);
    assert_eq!(trusted().await, [true, false]);
}

#[test]
fn certificates_that_the_environment_names_must_be_usable() {
    let folder = tempfile::tempdir().unwrap();
    let cause = |path: &Path| of_file(path).checked.map_err(|error| error.to_string());
    let path = folder.path().join("ca.crt");
    let start = format!("failed to read the certificates of SSL_CERT_FILE={}: ", path.display());
    let missing = cause(&path).unwrap_err();
    assert!(missing.starts_with(&start) && missing.contains("No such file"), "{missing}");
    fs::write(&path, "").unwrap();
    let empty = cause(&path).unwrap_err();
    assert!(empty.starts_with(&start), "{empty}");

    let system = move || load_certs_from_paths(Some(&path), None);
    let system = Authorities::new(String::new(), Vec::new(), system);
    assert_eq!(system.checked, Ok(()), "those of the system");
}
