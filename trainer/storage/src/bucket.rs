//! Bucket prefix: reads and writes whole objects, verified and retried.
//!
//! Every body is sent with its SHA-256, which the server verifies. Large objects are read in ranges
//! and written in parts ([`super::upload`]), each retried separately.

mod client;

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use rljob_crds::BucketConfig;
use sha2::{Digest, Sha256};

pub(crate) use self::client::runtime;
use self::client::{client_options, is_transient, line};
use crate::StorageError;
use crate::credentials::KeyFiles;

/// First and longest wait between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Time for which requests are retried while the server is unavailable.
const RETRY_LIMIT: Duration = Duration::from_secs(600);
/// Bytes per range of a large object.
const RANGE: u64 = 16 << 20;
/// Concurrent ranges or parts.
pub(crate) const CONCURRENCY: usize = 4;

/// A prefix of a bucket. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(crate) store: Arc<AmazonS3>,
    name: String,
    prefix: String,
    retry_limit: Duration,
    on_response: fn(),
}

impl Bucket {
    /// Opens the prefix without sending a request.
    pub fn open(config: &BucketConfig) -> Result<Self, StorageError> {
        rljob_http::check_authorities()?;
        let failed = |source| StorageError::Bucket {
            action: "open",
            place: format!("s3://{}", config.bucket),
            source,
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_checksum_algorithm(Checksum::SHA256)
            // Retries are made here, limited by time.
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: 0,
                retry_timeout: Duration::ZERO,
            })
            .with_client_options(client_options().map_err(failed)?);
        if let Some(endpoint) = &config.endpoint {
            builder =
                builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(folder) = &config.credentials {
            builder = builder.with_credentials(Arc::new(KeyFiles(folder.clone())));
        }
        let store = Arc::new(builder.build().map_err(failed)?);
        Ok(Self {
            store,
            name: config.bucket.clone(),
            prefix: config.prefix.clone(),
            retry_limit: RETRY_LIMIT,
            on_response: || {},
        })
    }

    /// Limits the time of retries.
    #[must_use]
    pub fn with_retry_limit(self, retry_limit: Duration) -> Self {
        Self { retry_limit, ..self }
    }

    /// Sets a callback for every response of the server, for example to a part of an upload or a
    /// range of a large object.
    #[must_use]
    pub fn on_response(self, on_response: fn()) -> Self {
        Self { on_response, ..self }
    }

    /// `s3://bucket/prefix/name`.
    pub fn place(&self, name: &str) -> String {
        format!("s3://{}/{}", self.name, self.key(name))
    }

    /// Reads an object of at most `limit` bytes; `None` if it does not exist.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StorageError> {
        let key = self.key(name);
        let Some(size) = self.size(name)? else { return Ok(None) };
        if size > limit {
            return Err(StorageError::TooLarge { place: self.place(name), limit });
        }
        let mut bytes = Vec::with_capacity(size as usize);
        self.each_range(&key, size, |range| bytes.extend_from_slice(range))
            .map_err(self.failed("read", name))?;
        Ok(Some(bytes))
    }

    /// Downloads an object to a file, range by range; returns false if it does not exist. The file
    /// appears complete.
    pub fn download(&self, name: &str, path: &Path) -> Result<bool, StorageError> {
        let Some(size) = self.size(name)? else { return Ok(false) };
        let io = || StorageError::io("write", path.display().to_string());
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let mut file = File::create(&partial).map_err(io())?;
        let mut written = Ok(());
        self.each_range(&self.key(name), size, |range| {
            if written.is_ok() {
                written = file.write_all(range);
            }
        })
        .map_err(self.failed("read", name))?;
        written.and_then(|()| std::fs::rename(&partial, path)).map_err(io())?;
        Ok(true)
    }

    /// Size of an object in bytes; `None` if it does not exist.
    pub fn size(&self, name: &str) -> Result<Option<u64>, StorageError> {
        let key = self.key(name);
        match self.block_on(|| self.store.head(&key))? {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.failed("look up", name)(source)),
        }
    }

    /// Computes the SHA-256 of an object's content.
    pub fn sha256(&self, name: &str) -> Result<Sha256, StorageError> {
        let Some(size) = self.size(name)? else {
            return Err(StorageError::Io {
                action: "read",
                place: self.place(name),
                source: std::io::ErrorKind::NotFound.into(),
            });
        };
        let mut hash = Sha256::new();
        self.each_range(&self.key(name), size, |range| hash.update(range))
            .map_err(self.failed("read", name))?;
        Ok(hash)
    }

    /// Writes or replaces an object.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let (key, payload) = (self.key(name), PutPayload::from(bytes));
        self.block_on(|| self.store.put(&key, payload.clone()))?
            .map(drop)
            .map_err(self.failed("write", name))
    }

    /// Creates an object; returns false if another one exists. A repeated request whose first
    /// response was lost finds equal content and returns true.
    pub fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<bool, StorageError> {
        let (key, payload) = (self.key(name), PutPayload::from(bytes.to_vec()));
        let create = || async {
            let result =
                self.store.put_opts(&key, payload.clone(), PutOptions::from(PutMode::Create)).await;
            let Err(Error::AlreadyExists { .. }) = &result else { return result };
            match self.store.head(&key).await {
                // The server may still be processing a request whose response was lost.
                Err(Error::NotFound { .. }) => Err(Error::Generic {
                    store: "S3",
                    source: "the server rejected the object as existing, but it does not exist"
                        .into(),
                }),
                Err(error) => Err(error),
                Ok(_) => result,
            }
        };
        match self.block_on(create)? {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. }) => match self.read(name, bytes.len() as u64) {
                Err(StorageError::TooLarge { .. }) => Ok(false),
                found => Ok(found?.as_deref() == Some(bytes)),
            },
            Err(source) => Err(self.failed("write", name)(source)),
        }
    }

    /// Whether the store rejects conditional puts of existing objects. A store that ignores the
    /// condition lets two writers overwrite each other.
    pub fn rejects_overwrites(&self, name: &str) -> Result<bool, StorageError> {
        let (key, options) = (self.key(name), PutOptions::from(PutMode::Create));
        for _ in 0..2 {
            match self.block_on(|| self.store.put_opts(&key, PutPayload::new(), options.clone()))? {
                Ok(_) => {}
                Err(Error::AlreadyExists { .. }) => return Ok(true),
                Err(source) => return Err(self.failed("write", name)(source)),
            }
        }
        Ok(false)
    }

    /// Lists the objects below a folder: relative name and size.
    pub fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, StorageError> {
        let prefix = self.key(folder);
        let listed = self
            .block_on(|| self.store.list(Some(&prefix)).try_collect::<Vec<_>>())?
            .map_err(self.failed("list", folder))?;
        let name = |key: &Key| {
            Some(key.as_ref().strip_prefix(prefix.as_ref())?.trim_start_matches('/').to_owned())
        };
        Ok(listed.into_iter().filter_map(|meta| Some((name(&meta.location)?, meta.size))).collect())
    }

    /// Removes objects; missing ones are ignored.
    pub fn remove(&self, names: &[String]) -> Result<(), StorageError> {
        let keys: Vec<Key> = names.iter().map(|name| self.key(name)).collect();
        let remove = || {
            let keys = futures::stream::iter(keys.clone().into_iter().map(Ok)).boxed();
            self.store
                .delete_stream(keys)
                .filter(|result| std::future::ready(!matches!(result, Err(Error::NotFound { .. }))))
                .try_collect::<Vec<_>>()
        };
        self.block_on(remove)?
            .map(drop)
            .map_err(self.failed("remove", names.first().map_or("", String::as_str)))
    }

    /// Passes the content of an object to `take` in order.
    fn each_range(&self, key: &Key, size: u64, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        let starts = (0..size).step_by(RANGE as usize);
        let ranges = starts.map(|start| start..size.min(start.saturating_add(RANGE)));
        let read = |range: Range<u64>| async move {
            self.retry(|| self.store.get_range(key, range.clone())).await
        };
        let all =
            futures::stream::iter(ranges).map(read).buffered(CONCURRENCY).try_for_each(|bytes| {
                take(&bytes);
                std::future::ready(Ok(()))
            });
        match runtime() {
            Ok(runtime) => runtime.block_on(all),
            Err(error) => Err(Error::Generic { store: "S3", source: error.into() }),
        }
    }

    pub(crate) fn key(&self, name: &str) -> Key {
        Key::from(format!("{}/{name}", self.prefix))
    }

    pub(crate) fn failed(
        &self,
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(Error) -> StorageError {
        let place = self.place(name);
        move |source| match rljob_http::untrusted(&source) {
            Some(advice) => StorageError::Untrusted { action, place, advice },
            None => StorageError::Bucket { action, place, source },
        }
    }

    /// Blocks on a call, with retries as in [`Self::retry`].
    fn block_on<T, F: Future<Output = Result<T, Error>>>(
        &self,
        call: impl FnMut() -> F,
    ) -> Result<Result<T, Error>, StorageError> {
        Ok(runtime()?.block_on(self.retry(call)))
    }

    /// Retries an idempotent call until the server responds or the time limit passes.
    pub(crate) async fn retry<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let (started, mut backoff) = (Instant::now(), BACKOFF.0);
        loop {
            match call().await {
                Err(error)
                    if is_transient(&error)
                        && started.elapsed().saturating_add(backoff) < self.retry_limit =>
                {
                    tracing::warn!(error = %line(&error),
                        "the bucket's server is unavailable; retrying");
                    tokio::time::sleep(backoff).await;
                    backoff = backoff.saturating_mul(2).min(BACKOFF.1);
                }
                result => {
                    (self.on_response)();
                    return result;
                }
            }
        }
    }
}
