//! A file into a bucket, in parts if it is large. An upload that is not completed is not an object:
//! nobody sees it, but it is paid for until it is aborted.
//!
//! ```text
//!  create ─▶ NAME.upload (the upload's id) ─▶ parts, some at once ─▶ complete ─▶ remove NAME.upload
//!                                               └─ failed ─▶ abort ─┘
//! ```
//! What a killed writer leaves is found by its `.upload` and aborted with its folder
//! ([`Bucket::remove_folder`]).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt, PutPayload};

use crate::bucket::{AT_ONCE, runtime};
use crate::{Bucket, StorageError};

/// Bytes of a part. S3 takes 5 MiB and more, but for the last.
const PART: u64 = 16 << 20;
/// Parts of one upload; S3 takes 10,000.
const PARTS: u64 = 9_000;
/// Suffix of the object that holds the id of an upload under way.
const UNDER_WAY: &str = ".upload";

impl Bucket {
    /// Writes a file's content as one object and checks that it is there whole.
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

    /// Removes a folder, its marker first, and aborts what is being uploaded into it. Whoever
    /// writes there must be gone.
    pub fn remove_folder(&self, folder: &str, marker: &str) -> Result<(), StorageError> {
        let inside: Vec<String> =
            self.list(folder)?.into_keys().map(|name| format!("{folder}/{name}")).collect();
        for name in inside.iter().filter(|name| name.ends_with(UNDER_WAY)) {
            if let Some(id) = self.read(name)? {
                let (key, id) = (
                    self.key(name.trim_end_matches(UNDER_WAY)),
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
        let id = self.patiently(|| self.store.create_multipart(key)).await?;
        let under_way = Key::from(format!("{key}{UNDER_WAY}"));
        self.patiently(|| self.store.put(&under_way, PutPayload::from(id.clone()))).await?;
        let result = self.parts(&file, key, &id, size).await;
        if result.is_err()
            && let Err(error) = self.abort(key, &id).await
        {
            tracing::warn!(%key, %error, "an upload could not be aborted; it goes with its folder");
            return result;
        }
        self.patiently(|| self.store.delete(&under_way)).await?;
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
        let part = |index: u64| async move {
            let (file, start) = (Arc::clone(file), index * length);
            let bytes = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; length.min(size - start) as usize];
                file.read_exact_at(&mut bytes, start).map(|()| bytes)
            });
            let bytes = bytes
                .await?
                .map_err(|error| Error::Generic { store: "S3", source: error.into() })?;
            let payload = PutPayload::from(bytes);
            self.patiently(|| self.store.put_part(key, id, index as usize, payload.clone())).await
        };
        let parts: Vec<PartId> = futures::stream::iter(0..size.div_ceil(length))
            .map(part)
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        match self.patiently(|| self.store.complete_multipart(key, id, parts.clone())).await {
            // It was completed before, and the answer was lost; the size tells.
            Err(Error::NotFound { .. }) => self.patiently(|| self.store.head(key)).await.map(drop),
            result => result.map(drop),
        }
    }

    /// An upload that is gone is aborted already.
    async fn abort(&self, key: &Key, id: &String) -> Result<(), Error> {
        match self.patiently(|| self.store.abort_multipart(key, id)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result,
        }
    }
}
