//! Where a run's coordinator is. A coordinator that may act writes its address into the run's run store,
//! and who calls it looks there instead of asking for its name.
//!
//! ```text
//!  coordinator, once the run store is its own ──▶ coordinator-address ◀── supervisors, learners: at every new connection
//! ```
//!
//! A name leads to the pod before for as long as caches of DNS keep it, which is 30 s in many
//! clusters, and one that was asked for too early to nobody for as long. An address of a
//! coordinator that is gone does no harm: epochs fence what answers there, tokens whatever else
//! does.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{RunStore, StorageError};

const FILE: &str = "coordinator-address";
/// A store that does not answer within this time is not waited for: the name may do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says in a run store that its coordinator is at `address`. Blocks.
///
/// # Errors
/// A run store that cannot be written to.
pub fn announce(run_store: &RunStore, address: IpAddr) -> Result<(), StorageError> {
    run_store.put(FILE, address.to_string().into_bytes())
}

/// Finds the coordinator of the run that is kept in this run store; by its name as long as none has
/// announced itself there.
#[derive(Clone, Debug)]
pub struct CoordinatorResolver(RunStore);

impl CoordinatorResolver {
    /// Of the run in this run store.
    pub fn of(run_store: RunStore) -> Self {
        Self(match run_store {
            RunStore::Bucket(bucket) => RunStore::Bucket(bucket.with_patience(PATIENCE)),
            folder @ RunStore::Folder(_) => folder,
        })
    }

    fn address(&self) -> Option<IpAddr> {
        let bytes = self
            .0
            .read(FILE)
            .inspect_err(|error| tracing::debug!(%error, "looking for the coordinator by its name"))
            .ok()??;
        String::from_utf8(bytes).ok()?.trim().parse().ok()
    }
}

impl Resolve for CoordinatorResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let run_store = self.clone();
        Box::pin(async move {
            // The port is the URL's.
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
    async fn a_coordinator_is_where_the_last_one_announced_itself_and_before_that_where_its_name_leads()
     {
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
