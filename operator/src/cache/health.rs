//! Health of the watches, by resource: what `/readyz` and the metrics report.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Time for which a watch fails before it is reported: connections break now and then.
const PATIENCE: Duration = Duration::from_secs(30);
/// A failure counts as repaired after this time without another one. Watches are restarted at least
/// every 30 s.
const REPAIRED: Duration = Duration::from_secs(90);

/// The watches of an operator.
#[derive(Debug, Default)]
pub struct WatchHealth {
    watches: Mutex<BTreeMap<String, Watch>>,
    disturbed: Notify,
}

#[derive(Debug, Default)]
struct Watch {
    is_listed: bool,
    failure: Option<Failure>,
}

/// Failures without an event in between.
#[derive(Debug)]
struct Failure {
    first: Instant,
    last: Instant,
    message: String,
}

impl WatchHealth {
    /// Adds a watch that has started.
    pub fn start(&self, resource: &str) {
        self.watches.lock().entry(resource.to_owned()).or_default();
    }

    /// Records an event or an error of a watch.
    pub fn record<K>(&self, resource: &str, event: &watcher::Result<watcher::Event<K>>) {
        match event {
            Ok(watcher::Event::Init) => {
                if self.watches.lock().get(resource).is_some_and(|watch| watch.is_listed) {
                    self.disturbed.notify_one();
                }
            }
            Ok(watcher::Event::InitApply(_)) => {}
            Ok(watcher::Event::InitDone) => self.set(resource, |watch| {
                *watch = Watch { is_listed: true, failure: None };
            }),
            Ok(_) => self.set(resource, |watch| watch.failure = None),
            Err(error) => {
                self.fail(resource, error.to_string(), Instant::now());
                self.disturbed.notify_one();
            }
        }
    }

    /// Completes when a watch has failed or lists again.
    pub async fn disturbed(&self) {
        self.disturbed.notified().await;
    }

    /// Each resource with the problem of its watch, if any.
    pub fn report(&self, now: Instant) -> Vec<(String, Option<String>)> {
        let watches = self.watches.lock();
        watches.iter().map(|(resource, watch)| (resource.clone(), watch.problem(now))).collect()
    }

    fn set(&self, resource: &str, change: impl FnOnce(&mut Watch)) {
        change(self.watches.lock().entry(resource.to_owned()).or_default());
    }

    fn fail(&self, resource: &str, message: String, now: Instant) {
        self.set(resource, |watch| {
            let known = watch.failure.as_ref();
            let known = known.filter(|known| now.duration_since(known.last) < REPAIRED);
            let first = known.map_or(now, |known| known.first);
            watch.failure = Some(Failure { first, last: now, message });
        });
    }
}

impl Watch {
    fn problem(&self, now: Instant) -> Option<String> {
        match &self.failure {
            Some(failure) if !self.is_listed => Some(failure.message.clone()),
            None if !self.is_listed => Some("not listed yet".to_owned()),
            Some(failure) => {
                let lasts = now.duration_since(failure.first) >= PATIENCE;
                let is_repaired = now.duration_since(failure.last) >= REPAIRED;
                (lasts && !is_repaired).then(|| failure.message.clone())
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(health: &WatchHealth, now: Instant) -> Option<String> {
        health.report(now)[0].1.clone()
    }

    #[test]
    fn a_watch_is_unhealthy_until_it_is_listed_and_while_it_keeps_failing() {
        let (health, start) = (WatchHealth::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        health.start("pods");
        assert_eq!(problem(&health, at(0)).as_deref(), Some("not listed yet"));
        health.fail("pods", "forbidden".to_owned(), at(1));
        assert_eq!(problem(&health, at(1)).as_deref(), Some("forbidden"));
        health.record::<()>("pods", &Ok(watcher::Event::InitDone));
        assert_eq!(problem(&health, at(2)), None);

        health.fail("pods", "connection reset".to_owned(), at(10));
        assert_eq!(problem(&health, at(11)), None, "a broken connection");
        health.fail("pods", "forbidden".to_owned(), at(40));
        assert_eq!(problem(&health, at(41)).as_deref(), Some("forbidden"));
        assert_eq!(problem(&health, at(131)), None, "restarts of the watch no longer fail");
        health.fail("pods", "forbidden".to_owned(), at(140));
        assert_eq!(problem(&health, at(141)), None, "another failure");
        health.record::<()>("pods", &Ok(watcher::Event::Apply(())));
        health.fail("pods", "forbidden".to_owned(), at(180));
        assert_eq!(problem(&health, at(181)), None, "it worked in between");
    }
}
