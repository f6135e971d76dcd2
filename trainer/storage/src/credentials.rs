//! Bucket credentials from a mounted Secret: one file per key, read for every request, so that keys
//! can be rotated during a run.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error, Result};
use rljob_crds::names::{S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY, S3_SESSION_TOKEN};

/// Folder with one file per key.
#[derive(Debug)]
pub struct KeyFiles(pub PathBuf);

impl KeyFiles {
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        match std::fs::read_to_string(self.0.join(name)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn needed(&self, name: &str) -> io::Result<String> {
        self.read(name)?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("the Secret of storage.s3.credentialsSecretRef has no key `{name}`"),
            )
        })
    }

    fn all(&self) -> io::Result<AwsCredential> {
        Ok(AwsCredential {
            key_id: self.needed(S3_ACCESS_KEY_ID)?,
            secret_key: self.needed(S3_SECRET_ACCESS_KEY)?,
            token: self.read(S3_SESSION_TOKEN)?,
        })
    }
}

#[async_trait]
impl CredentialProvider for KeyFiles {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        self.all()
            .map(Arc::new)
            .map_err(|source| Error::Generic { store: "S3", source: source.into() })
    }
}
