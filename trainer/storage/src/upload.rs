//! File uploads, in parts for large files. An incomplete upload is not an object, but is billed
//! until it is aborted.
//!
//! ```text
//!  create ─▶ NAME.upload (upload id) ─▶ parts, concurrently ─▶ complete ─▶ remove NAME.upload
//!                                              └─ failed ─▶ abort ─┘
//! ```
//! Uploads of killed writers are found by their `.upload` object and aborted with their folder
//! ([`Bucket::remove_folder`]).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt, PutPayload};

use crate::bucket::{CONCURRENCY, runtime};
use crate::{Bucket, MAX_MANIFEST, StorageError};

/// Bytes per part. S3 requires at least 5 MiB except for the last part.
const PART: u64 = 16 << 20;
/// Maximum number of parts of an upload; S3 allows 10,000.
const PARTS: u64 = 9_000;
/// Suffix of the object that holds the id of an upload in progress.
const ID_SUFFIX: &str = ".upload";

impl Bucket {
    /// Uploads a file as one object and verifies its size.
    pub fn upload(&self, file: &Path, name: &str) -> Result<(), StorageError> {
        let io = |action| StorageError::io(action, file.display().to_string());
        let open = File::open(file).map_err(io("open"))?;
        let mut size = open.metadata().map_err(io("look up"))?.len();
        if size <= PART {
            let bytes = std::fs::read(file).map_err(io("read"))?;
            size = bytes.len() as u64;
            self.put(name, bytes)?;
        } else {
            runtime()?
                .block_on(self.in_parts(Arc::new(open), &self.key(name), size))
                .map_err(self.failed("upload", name))?;
        }
        match self.size(name)?.unwrap_or_default() {
            found if found == size => Ok(()),
            found => Err(StorageError::Size { place: self.place(name), found, expected: size }),
        }
    }

    /// Removes a folder, its marker first, and aborts uploads into it. Its writer must have exited.
    pub fn remove_folder(&self, folder: &str, marker: &str) -> Result<(), StorageError> {
        let inside: Vec<String> =
            self.list(folder)?.into_keys().map(|name| format!("{folder}/{name}")).collect();
        for name in inside.iter().filter(|name| name.ends_with(ID_SUFFIX)) {
            if let Some(id) = self.read(name, MAX_MANIFEST)? {
                let (key, id) = (
                    self.key(name.trim_end_matches(ID_SUFFIX)),
                    String::from_utf8_lossy(&id).into_owned(),
                );
                runtime()?
                    .block_on(self.abort(&key, &id))
                    .map_err(self.failed("abort the upload of", name))?;
            }
        }
        self.remove(&[format!("{folder}/{marker}")])?;
        self.remove(&inside)
    }

    async fn in_parts(&self, file: Arc<File>, key: &Key, size: u64) -> Result<(), Error> {
        let id = self.retry(|| self.store.create_multipart(key)).await?;
        let id_object = Key::from(format!("{key}{ID_SUFFIX}"));
        self.retry(|| self.store.put(&id_object, PutPayload::from(id.clone()))).await?;
        let result = self.parts(&file, key, &id, size).await;
        if result.is_err()
            && let Err(error) = self.abort(key, &id).await
        {
            tracing::warn!(%key, %error, "failed to abort an upload; its folder keeps the id");
            return result;
        }
        self.retry(|| self.store.delete(&id_object)).await?;
        result
    }

    async fn parts(
        &self,
        file: &Arc<File>,
        key: &Key,
        id: &String,
        size: u64,
    ) -> Result<(), Error> {
        let length = PART.max(size.div_ceil(PARTS));
        let part = |(index, start): (usize, u64)| async move {
            let file = Arc::clone(file);
            let bytes = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; length.min(size.saturating_sub(start)) as usize];
                file.read_exact_at(&mut bytes, start).map(|()| bytes)
            });
            let bytes = bytes
                .await?
                .map_err(|error| Error::Generic { store: "S3", source: error.into() })?;
            let payload = PutPayload::from(bytes);
            self.retry(|| self.store.put_part(key, id, index, payload.clone())).await
        };
        let starts = (0..size).step_by(length as usize).enumerate();
        let parts: Vec<PartId> =
            futures::stream::iter(starts).map(part).buffered(CONCURRENCY).try_collect().await?;
        match self.retry(|| self.store.complete_multipart(key, id, parts.clone())).await {
            // The upload was completed and the response was lost; the caller verifies the size.
            Err(Error::NotFound { .. }) => self.retry(|| self.store.head(key)).await.map(drop),
            result => result.map(drop),
        }
    }

    /// A missing upload is already aborted.
    async fn abort(&self, key: &Key, id: &String) -> Result<(), Error> {
        match self.retry(|| self.store.abort_multipart(key, id)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result,
        }
    }
}
