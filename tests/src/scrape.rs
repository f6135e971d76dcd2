//! Client of Prometheus endpoints (`/metrics`) and health endpoints.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const TIMEOUT: Duration = Duration::from_secs(10);

/// All samples by name with labels, for example `rljob_jobs{state="Running"}`.
pub fn metrics(address: SocketAddr) -> Result<BTreeMap<String, f64>> {
    let response = get(address, "/metrics")?;
    let samples = response
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '));
    Ok(samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// Body of a 200 response.
pub fn get(address: SocketAddr, path: &str) -> Result<String> {
    let (status, body) = response(address, path)?;
    ensure!(status == 200, "GET {path} of {address}: {status}: {body}");
    Ok(body)
}

/// Status and body of a response.
pub fn response(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)
        .with_context(|| format!("nothing listens on {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the response ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) =
        response.split_once("\r\n\r\n").context("the response has no end of headers")?;
    let status = head.split(' ').nth(1).context("the response has no status")?;
    Ok((status.parse()?, body.to_owned()))
}
