//! A prefix of a bucket: whole objects in and out, checked on the way, tried again for as long as
//! the server may be away.
//!
//! Every body is sent with its SHA-256, which the server compares before it keeps anything. Large
//! objects are read in ranges and written in parts ([`super::upload`]), each tried again by itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig,
};
use rljob_crds::BucketConfig;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::StorageError;
use crate::credentials::KeyFiles;

/// How long a server may be away before a call fails.
const PATIENCE: Duration = Duration::from_secs(600);
/// First and longest wait between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// One request, body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of one range of a large object.
const RANGE: u64 = 16 << 20;
/// Ranges, or parts, under way at once.
pub(crate) const AT_ONCE: usize = 4;

/// A prefix of a bucket. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(crate) store: Arc<AmazonS3>,
    name: String,
    prefix: String,
    patience: Duration,
    answered: fn(),
}

impl Bucket {
    /// The bucket and prefix of a run; nothing is asked of the server yet.
    pub fn open(config: &BucketConfig) -> Result<Self, StorageError> {
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_checksum_algorithm(Checksum::SHA256)
            // Tries are repeated here, where it is known for how long.
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: 0,
                retry_timeout: Duration::ZERO,
            })
            .with_client_options(ClientOptions::new().with_timeout(REQUEST_TIMEOUT));
        if let Some(endpoint) = &config.endpoint {
            builder =
                builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(folder) = &config.credentials {
            builder = builder.with_credentials(Arc::new(KeyFiles(folder.clone())));
        }
        let failed = |source| StorageError::Bucket {
            action: "open",
            place: format!("s3://{}", config.bucket),
            source,
        };
        let store = Arc::new(builder.build().map_err(failed)?);
        Ok(Self {
            store,
            name: config.bucket.clone(),
            prefix: config.prefix.clone(),
            patience: PATIENCE,
            answered: || {},
        })
    }

    /// The same with less patience.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The same, which calls this after every request that the server has answered: a part of an
    /// upload, a range of a large object.
    #[must_use]
    pub fn on_answer(self, answered: fn()) -> Self {
        Self { answered, ..self }
    }

    /// `s3://bucket/prefix/name`.
    pub fn place(&self, name: &str) -> String {
        format!("s3://{}/{}", self.name, self.key(name))
    }

    /// An object's bytes; none if it is not there.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let key = self.key(name);
        let Some(size) = self.size(name)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(size as usize);
        self.each_range(&key, size, |range| bytes.extend_from_slice(range))
            .map_err(self.failed("read", name))?;
        Ok(Some(bytes))
    }

    /// An object's size in bytes; none if it is not there.
    pub fn size(&self, name: &str) -> Result<Option<u64>, StorageError> {
        let key = self.key(name);
        match self.wait(|| self.store.head(&key))? {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.failed("look up", name)(source)),
        }
    }

    /// An object's SHA-256, of all its bytes as they are now.
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

    /// Writes an object, replacing what is there.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let (key, payload) = (self.key(name), PutPayload::from(bytes));
        self.wait(|| self.store.put(&key, payload.clone()))?
            .map(drop)
            .map_err(self.failed("write", name))
    }

    /// Writes an object that must not be there; false if another one is. An answer that was lost is
    /// found out: what is there and equal is ours.
    pub fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, StorageError> {
        let (key, payload) = (self.key(name), PutPayload::from(bytes.to_vec()));
        let create = || async {
            let answer =
                self.store.put_opts(&key, payload.clone(), PutOptions::from(PutMode::Create)).await;
            let Err(Error::AlreadyExists { .. }) = &answer else { return answer };
            match self.store.head(&key).await {
                // The server may still be at a request whose answer was lost: nobody's object is
                // there yet.
                Err(Error::NotFound { .. }) => Err(Error::Generic {
                    store: "S3",
                    source: "the server refuses to make an object that is not there".into(),
                }),
                Err(error) => Err(error),
                Ok(_) => answer,
            }
        };
        match self.wait(create)? {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. }) => Ok(self.read(name)?.as_deref() == Some(bytes)),
            Err(source) => Err(self.failed("write", name)(source)),
        }
    }

    /// Whether the store refuses to write an object that must not be there and is. One that ignores
    /// the condition would let two writers undo each other.
    pub fn refuses_to_replace(&self, name: &str) -> Result<bool, StorageError> {
        let (key, options) = (self.key(name), PutOptions::from(PutMode::Create));
        for _ in 0..2 {
            match self.wait(|| self.store.put_opts(&key, PutPayload::new(), options.clone()))? {
                Ok(_) => {}
                Err(Error::AlreadyExists { .. }) => return Ok(true),
                Err(source) => return Err(self.failed("write", name)(source)),
            }
        }
        Ok(false)
    }

    /// Every object below a folder: its name in there, and its size.
    pub fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, StorageError> {
        let prefix = self.key(folder);
        let listed = self
            .wait(|| self.store.list(Some(&prefix)).try_collect::<Vec<_>>())?
            .map_err(self.failed("list", folder))?;
        let name = |key: &Key| {
            Some(key.as_ref().strip_prefix(prefix.as_ref())?.trim_start_matches('/').to_owned())
        };
        Ok(listed.into_iter().filter_map(|meta| Some((name(&meta.location)?, meta.size))).collect())
    }

    /// Removes objects; one that is not there is removed already.
    pub fn remove(&self, names: &[String]) -> Result<(), StorageError> {
        let keys: Vec<Key> = names.iter().map(|name| self.key(name)).collect();
        let remove = || {
            let keys = futures::stream::iter(keys.clone().into_iter().map(Ok)).boxed();
            self.store
                .delete_stream(keys)
                .filter(|result| std::future::ready(!matches!(result, Err(Error::NotFound { .. }))))
                .try_collect::<Vec<_>>()
        };
        self.wait(remove)?
            .map(drop)
            .map_err(self.failed("remove", names.first().map_or("", String::as_str)))
    }

    /// Gives a large object's bytes to `take`, in order.
    fn each_range(&self, key: &Key, size: u64, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        let ranges =
            (0..size.div_ceil(RANGE)).map(|index| index * RANGE..size.min((index + 1) * RANGE));
        let read = |range: Range<u64>| async move {
            self.patiently(|| self.store.get_range(key, range.clone())).await
        };
        let all = futures::stream::iter(ranges).map(read).buffered(AT_ONCE).try_for_each(|bytes| {
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
        move |source| StorageError::Bucket { action, place, source }
    }

    /// Waits for a call, tried again as [`Self::patiently`] says.
    fn wait<T, F: Future<Output = Result<T, Error>>>(
        &self,
        call: impl FnMut() -> F,
    ) -> Result<Result<T, Error>, StorageError> {
        Ok(runtime()?.block_on(self.patiently(call)))
    }

    /// Repeats a call that may be repeated until the server answers or patience is over.
    pub(crate) async fn patiently<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let (started, mut backoff) = (Instant::now(), BACKOFF.0);
        loop {
            match call().await {
                Err(error) if is_passing(&error) && started.elapsed() + backoff < self.patience => {
                    tracing::warn!(error = %line(&error), "the bucket's server is away; trying again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
                result => {
                    (self.answered)();
                    return result;
                }
            }
        }
    }
}

/// Whether the same call may be answered otherwise later: no answer, 5xx, 429, 408. What names an
/// object, a right or a bad request will not.
fn is_passing(error: &Error) -> bool {
    let refused = |text: &str| {
        text.contains("status code: 4")
            && !["status code: 429", "status code: 408"].iter().any(|code| text.contains(code))
    };
    matches!(error, Error::Generic { .. }) && !refused(&line(error))
}

/// An error and its causes in one line.
fn line(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(|error| error.to_string().replace('\n', " "))
        .last()
        .unwrap_or_default()
}

/// The client's threads, one pool a process. Never ended, since a runtime must not be dropped where
/// another one waits.
pub(crate) fn runtime() -> Result<&'static Runtime, StorageError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("s3")
        .enable_all()
        .build();
    let runtime = runtime.map_err(StorageError::Runtime)?;
    Ok(RUNTIME.get_or_init(|| runtime))
}
