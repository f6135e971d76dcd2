//! Key from which the tokens of all jobs are derived: a file, or a Secret in the operator's
//! namespace that the operator creates at its first start.
//!
//! The Secret is the default: it needs no manual step, and few rights: the operator can create
//! Secrets already, and it can get this one by name.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::desired::tokens::TokenKey;
use crate::install::TOKEN_KEY_SECRET;

/// Length of a new key.
const KEY_BYTES: usize = 32;
/// The Secret's only entry.
const ENTRY: &str = "key";

/// Reads the key from a file.
///
/// # Errors
/// If the file cannot be read or holds fewer than 32 bytes.
pub fn from_file(path: &Path) -> anyhow::Result<TokenKey> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("failed to read the token key {}", path.display()))?;
    TokenKey::new(&bytes).with_context(|| format!("the token key {} is invalid", path.display()))
}

/// Reads the key from the Secret, which is created if it does not exist.
///
/// # Errors
/// If a request fails, or the Secret has no key.
pub async fn from_secret(client: &Client, namespace: &str) -> anyhow::Result<TokenKey> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match secrets
        .get_opt(TOKEN_KEY_SECRET)
        .await
        .context("failed to read the token key's Secret")?
    {
        Some(secret) => secret,
        None => create(&secrets).await?,
    };
    let Some(ByteString(bytes)) = secret.data.and_then(|mut data| data.remove(ENTRY)) else {
        bail!(
            "Secret {namespace}/{TOKEN_KEY_SECRET} has no entry `{ENTRY}`; delete it to get a new \
             key (running jobs then get new tokens)"
        );
    };
    TokenKey::new(&bytes)
        .with_context(|| format!("Secret {namespace}/{TOKEN_KEY_SECRET} is invalid"))
}

/// Random bytes from the operating system.
///
/// # Errors
/// If `/dev/urandom` cannot be read.
pub fn random(count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

async fn create(secrets: &Api<Secret>) -> anyhow::Result<Secret> {
    let key = random(KEY_BYTES).context("failed to generate a token key")?;
    let secret = Secret {
        metadata: ObjectMeta { name: Some(TOKEN_KEY_SECRET.to_owned()), ..ObjectMeta::default() },
        immutable: Some(true),
        data: Some([(ENTRY.to_owned(), ByteString(key))].into()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        // Another operator has created it first.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            secrets.get(TOKEN_KEY_SECRET).await.context("failed to read the token key's Secret")
        }
        result => result.context("failed to create the token key's Secret"),
    }
}
