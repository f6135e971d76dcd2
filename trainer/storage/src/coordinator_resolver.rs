//! Coordinator discovery through the run store: the active coordinator writes its address, and
//! clients read it for every connection instead of resolving a DNS name.
//!
//! ```text
//!  active coordinator ──▶ coordinator-address ◀── supervisors, learners: at every new connection
//! ```
//!
//! DNS caches keep the address of a previous pod, or a failed lookup, for 30 s in many clusters. A
//! stale or altered address is harmless: epochs fence old coordinators, and other servers cannot
//! prove to be the coordinator.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{MAX_MANIFEST, RunStore, StorageError};

const FILE: &str = "coordinator-address";
/// Time limit for the run store; then the name is resolved.
const RETRY_LIMIT: Duration = Duration::from_secs(2);

/// Writes the address of the active coordinator. Blocks.
pub fn announce(run_store: &RunStore, address: IpAddr) -> Result<(), StorageError> {
    run_store.put(FILE, address.to_string().into_bytes())
}

/// Resolves the coordinator of a run; by DNS name until one has announced itself.
#[derive(Clone, Debug)]
pub struct CoordinatorResolver(RunStore);

impl CoordinatorResolver {
    pub fn of(run_store: RunStore) -> Self {
        Self(match run_store {
            RunStore::Bucket(bucket) => RunStore::Bucket(bucket.with_retry_limit(RETRY_LIMIT)),
            folder @ RunStore::Folder(_) => folder,
        })
    }

    fn address(&self) -> Option<IpAddr> {
        let bytes = self
            .0
            .read(FILE, MAX_MANIFEST)
            .inspect_err(
                |error| tracing::debug!(%error, "resolving the coordinator by its DNS name"),
            )
            .ok()??;
        String::from_utf8(bytes).ok()?.trim().parse().ok()
    }
}

impl Resolve for CoordinatorResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let run_store = self.clone();
        Box::pin(async move {
            // The URL has the port.
            let found: Addrs =
                match tokio::task::spawn_blocking(move || run_store.address()).await? {
                    Some(address) => Box::new(std::iter::once(SocketAddr::new(address, 0))),
                    None => Box::new(
                        tokio::net::lookup_host((name.as_str(), 0))
                            .await?
                            .collect::<Vec<_>>()
                            .into_iter(),
                    ),
                };
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CoordinatorResolver, FILE, Resolve, RunStore, announce};

    #[tokio::test]
    async fn the_announced_address_wins_and_the_dns_name_is_the_fallback() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = RunStore::Folder(folder.path().to_owned());
        let resolver = CoordinatorResolver::of(run_store.clone());
        let found = || async {
            resolver
                .resolve("localhost".parse().unwrap())
                .await
                .unwrap()
                .map(|address| address.to_string())
                .collect::<Vec<_>>()
        };
        assert!(found().await.contains(&"127.0.0.1:0".to_owned()));
        announce(&run_store, "10.1.2.3".parse().unwrap()).unwrap();
        announce(&run_store, "fd00::7".parse().unwrap()).unwrap();
        assert_eq!(found().await, ["[fd00::7]:0"]);
        std::fs::write(folder.path().join(FILE), "torn").unwrap();
        assert!(found().await.contains(&"127.0.0.1:0".to_owned()));
    }
}
