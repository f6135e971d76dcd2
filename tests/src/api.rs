//! JSON client of the API server with administrator rights, for requests that are too frequent for
//! kubectl.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(60);

/// Client of one API server.
#[derive(Clone, Debug)]
pub struct Api {
    http: Client,
    /// Has no client certificate; for requests that carry a token.
    plain: Client,
    server: String,
}

impl Api {
    /// Authenticates as the user of a kubeconfig that [`crate::pki`] wrote.
    pub fn new(kubeconfig: &Path) -> Result<Self> {
        let config: Value = serde_json::from_slice(&fs::read(kubeconfig)?)
            .with_context(|| format!("{} is not JSON", kubeconfig.display()))?;
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let read = |value: &Value| {
            fs::read(value.as_str().unwrap_or_default())
                .with_context(|| format!("failed to read {value}"))
        };
        let authority = Certificate::from_pem(&read(&cluster["certificate-authority"])?)?;
        let identity = Identity::from_pem(
            &[read(&user["client-key"])?, read(&user["client-certificate"])?].concat(),
        )?;
        let plain = Client::builder().add_root_certificate(authority.clone()).no_proxy().build()?;
        let http = Client::builder()
            .add_root_certificate(authority)
            .identity(identity)
            .no_proxy()
            .build()?;
        Ok(Self { http, plain, server: cluster["server"].as_str().unwrap_or_default().to_owned() })
    }

    /// GET of an object or list.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, "application/json", None)
    }

    /// JSON merge patch (RFC 7386).
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.send(Method::PATCH, path, "application/merge-patch+json", Some(patch))
    }

    /// JSON patch (RFC 6902).
    pub fn edit(&self, path: &str, operations: &Value) -> Result<Value> {
        self.send(Method::PATCH, path, "application/json-patch+json", Some(operations))
    }

    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.send(Method::POST, path, "application/json", Some(object))
    }

    /// DELETE; `options` are DeleteOptions.
    pub fn delete(&self, path: &str, options: &Value) -> Result<Value> {
        self.send(Method::DELETE, path, "application/json", Some(options))
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let line = format!("{method} {path}");
        let (code, bytes) = runtime().block_on(async {
            let mut request = self
                .http
                .request(method, format!("{}{path}", self.server))
                .timeout(LIMIT)
                .header("content-type", content_type);
            if let Some(body) = body {
                request = request.body(body.to_string());
            }
            let response = request.send().await.with_context(|| line.clone())?;
            anyhow::Ok((response.status(), response.bytes().await?))
        })?;
        let response: Value = serde_json::from_slice(&bytes)
            .with_context(|| format!("{line}: {code} {}", String::from_utf8_lossy(&bytes)))?;
        if !code.is_success() {
            bail!("{line}: {code}: {}", response["message"].as_str().unwrap_or_default());
        }
        ensure!(response.is_object(), "{line}: the response is not an object: {response}");
        Ok(response)
    }

    pub(crate) fn http(&self) -> &Client {
        &self.http
    }

    /// Client without a certificate, for requests that carry a token.
    pub(crate) fn plain(&self) -> &Client {
        &self.plain
    }

    /// The server's URL.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }
}

/// Runtime of requests and of the servers that tests run.
///
/// # Panics
/// Panics if no thread can be started.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    #[expect(clippy::expect_used, reason = "no test can run without threads")]
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("failed to start the runtime's threads")
    })
}
