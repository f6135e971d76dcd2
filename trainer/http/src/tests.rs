//! Authentication between roles over real connections.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::identity::Source;
use crate::{
    Authority, ClientTls, Limits, Role, Routes, ServerTls, is_plain_server, listen, serve,
};

fn pem(uid: &str, role: Role) -> String {
    pem_of(uid, role, 1)
}

fn pem_of(uid: &str, role: Role, seed: u8) -> String {
    let byte = uid.bytes().last().unwrap();
    let authority = Authority::new(uid, [byte ^ seed; 32]).unwrap();
    authority.issue(role, [role as u8 + byte; 32]).unwrap()
}

/// Tokens that a server has received.
type Received = Arc<Mutex<Vec<String>>>;

fn start(tls: Option<ServerTls>) -> (SocketAddr, Received, CancellationToken) {
    let listener = TcpListener::from_std(listen("[::]:0".parse().unwrap()).unwrap()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let (received, stop) = (Received::default(), CancellationToken::new());
    let record = Arc::clone(&received);
    let control = get(move |headers: HeaderMap| async move {
        record.lock().push(headers["authorization"].to_str().unwrap().to_owned());
        "done"
    });
    let probes = || Router::new().route("/healthz", get(|| async { "ok" }));
    let all = probes().route("/control", control);
    let routes = match tls {
        Some(tls) => Routes::new(probes(), all, &tls),
        None => all.into(),
    };
    tokio::spawn(serve(listener, routes, Limits::default(), stop.clone()));
    (address, received, stop)
}

fn coordinator(uid: &str) -> ServerTls {
    let clients = [Role::Operator, Role::Trainer].map(|role| role.server_name(uid));
    ServerTls::of_pem(&pem(uid, Role::Coordinator), &clients).unwrap()
}

async fn control(tls: &ClientTls, address: SocketAddr) -> reqwest::Result<String> {
    let client = tls.client(reqwest::Client::builder()).build()?;
    let request = client.get(format!("https://{address}/control")).bearer_auth("secret");
    request.send().await?.error_for_status()?.text().await
}

fn client(uid: &str, role: Role) -> ClientTls {
    ClientTls::of_pem(&pem(uid, role), &Role::Coordinator.server_name("uid-a")).unwrap()
}

#[tokio::test]
async fn roles_of_a_job_reach_their_server() {
    let (address, received, _stop) = start(Some(coordinator("uid-a")));
    for role in [Role::Operator, Role::Trainer] {
        assert_eq!(control(&client("uid-a", role), address).await.unwrap(), "done");
    }
    assert_eq!(*received.lock(), ["Bearer secret", "Bearer secret"]);
}

#[tokio::test]
async fn a_client_without_the_jobs_certificate_is_rejected() {
    let (address, received, _stop) = start(Some(coordinator("uid-a")));
    // Another job's operator, and roles without rights here.
    for (uid, role) in
        [("uid-b", Role::Operator), ("uid-a", Role::Coordinator), ("uid-a", Role::Inference)]
    {
        assert!(control(&client(uid, role), address).await.is_err(), "{uid} {role:?}");
    }
    let anonymous = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy();
    let anonymous = anonymous.build().unwrap();
    assert!(anonymous.get(format!("https://{address}/control")).send().await.is_err());
    let plain = anonymous.get(format!("http://{address}/control")).send().await.unwrap();
    assert_eq!(plain.status(), 404);
    assert!(received.lock().is_empty());
    // Probes need no certificate.
    let health = anonymous.get(format!("http://{address}/healthz")).send().await.unwrap();
    assert_eq!(health.text().await.unwrap(), "ok");
}

#[tokio::test]
async fn a_recycled_address_receives_neither_request_nor_token() {
    let engine = ServerTls::of_pem(&pem("uid-a", Role::Inference), &[]).unwrap();
    for server in [Some(coordinator("uid-b")), Some(engine), None] {
        let is_plain = server.is_none();
        let (address, received, _stop) = start(server);
        let error = control(&client("uid-a", Role::Operator), address).await.unwrap_err();
        assert!(received.lock().is_empty(), "{error}");
        assert_eq!(is_plain_server(&error), is_plain, "{error:?}");
    }
}

#[tokio::test]
async fn a_client_sends_nothing_readable_before_the_servers_proof() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let recorder = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; 4096];
        let length = stream.read(&mut bytes).await.unwrap();
        bytes.truncate(length);
        bytes
    });
    control(&client("uid-a", Role::Operator), address).await.unwrap_err();
    let sent = recorder.await.unwrap();
    let text = String::from_utf8_lossy(&sent);
    assert!(!text.contains("secret") && !text.contains("/control"), "{text}");
    assert_eq!(sent.first(), Some(&0x16));
    // No request leaves without TLS.
    let tls = client("uid-a", Role::Operator);
    let http = tls.client(reqwest::Client::builder()).build().unwrap();
    assert!(http.get(format!("http://{address}/control")).send().await.is_err());
}

#[tokio::test]
async fn a_rotated_certificate_is_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(Role::Coordinator.file());
    std::fs::write(&path, pem("uid-a", Role::Coordinator)).unwrap();
    let source = Source::of_file(&path).unwrap();
    let first = source.get();
    std::fs::write(&path, pem_of("uid-a", Role::Coordinator, 2)).unwrap();
    assert!(Arc::ptr_eq(&first, &source.get()), "the file is read again after a while");
    source.expire();
    let second = source.get();
    assert!(!Arc::ptr_eq(&first, &second));
    // A file that cannot be used changes nothing.
    std::fs::write(&path, "torn").unwrap();
    source.expire();
    assert!(Arc::ptr_eq(&second, &source.get()));
}

#[tokio::test]
async fn a_stalled_handshake_ends_within_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { headers: std::time::Duration::from_millis(200), ..Limits::default() };
    let routes = Routes::new(Router::new(), Router::new(), &coordinator("uid-a"));
    tokio::spawn(serve(listener, routes, limits, CancellationToken::new()));
    for start in [&[][..], &[0x16, 3, 1]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(start).await.unwrap();
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        tokio::time::timeout(std::time::Duration::from_secs(5), ended).await.unwrap().ok();
    }
}

#[tokio::test]
async fn ipv6_addresses_are_served() {
    let Ok(listener) = listen("[::1]:0".parse().unwrap()) else { return };
    let address = listener.local_addr().unwrap();
    let tls = coordinator("uid-a");
    let all = Router::new().route("/control", get(|| async { "six" }));
    let routes = Routes::new(Router::new(), all, &tls);
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(serve(listener, routes, Limits::default(), CancellationToken::new()));
    assert_eq!(control(&client("uid-a", Role::Trainer), address).await.unwrap(), "six");
}
