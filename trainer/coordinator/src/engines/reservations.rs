//! Reservations at engines: who has them, and who waits for one.

use parking_lot::{Mutex, MutexGuard};
use rljob_protocol::status::RequestCounts;
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::engines::queue::{Place, Queue, Ticket, Wanted};
use crate::engines::slots::{Leased, Slots};

/// The engine table, and the requests that wait for room in it.
pub struct Reservations {
    slots: Mutex<Slots>,
    /// Locked before `slots`.
    queue: Mutex<Queue<oneshot::Sender<Leased>>>,
    changed: watch::Sender<()>,
    clock: Clock,
}

impl Reservations {
    /// The engines of an empty table.
    pub fn new(slots: Slots, clock: Clock) -> Self {
        let (slots, queue) = (Mutex::new(slots), Mutex::default());
        Self { slots, queue, changed: watch::channel(()).0, clock }
    }

    /// The engine table. Call [`Self::notify`] after changes that may give room.
    pub fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// Notifies of every change of an engine.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Requests that engines process and that wait.
    pub fn counts(&self) -> RequestCounts {
        let queue = self.queue.lock();
        RequestCounts { running: self.slots().requests_in_flight(), queued: queue.requests() }
    }

    /// Waits for a reservation of an engine with matching weights and room. Cancel safe.
    pub async fn lease(&self, place: Place, wanted: Wanted) -> Lease<'_> {
        let (requests, tokens) = (wanted.requests, wanted.tokens);
        let (grant, granted) = oneshot::channel();
        let ticket = self.queue.lock().add(place, wanted, grant);
        let mut waiting = Waiting { reservations: self, ticket, requests, tokens, granted };
        self.serve();
        match (&mut waiting.granted).await {
            Ok(engine) => Lease { reservations: self, engine, requests, tokens },
            // The queue has the sender until it grants.
            Err(_) => std::future::pending().await,
        }
    }

    /// Grants reservations to waiting requests, as far as there is room.
    pub fn serve(&self) {
        let mut queue = self.queue.lock();
        let (mut slots, now) = (self.slots(), self.clock.now());
        for (grant, leased) in queue.serve(|wanted| slots.lease(wanted, now)) {
            // `Waiting` receives as long as its request is in the queue.
            let _ = grant.send(leased);
        }
    }

    /// Grants what has become possible, and tells observers of a change.
    pub fn notify(&self) {
        self.serve();
        self.changed.send_replace(());
    }
}

/// A request that waits for a reservation. Dropped, it leaves the queue, and returns a reservation
/// that was granted meanwhile.
struct Waiting<'a> {
    reservations: &'a Reservations,
    ticket: Ticket,
    requests: u32,
    tokens: u64,
    granted: oneshot::Receiver<Leased>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_served = !self.reservations.queue.lock().remove(self.ticket);
        if is_served && let Ok(engine) = self.granted.try_recv() {
            let (requests, tokens) = (self.requests, self.tokens);
            drop(Lease { reservations: self.reservations, engine, requests, tokens });
        }
    }
}

/// A reservation at an engine; released on drop.
pub struct Lease<'a> {
    reservations: &'a Reservations,
    pub engine: Leased,
    requests: u32,
    tokens: u64,
}

impl<'a> Lease<'a> {
    /// Splits off the reservation of one request with this many tokens.
    #[must_use]
    pub fn split_one(&mut self, tokens: u64) -> Lease<'a> {
        let (requests, tokens) = (self.requests.min(1), self.tokens.min(tokens));
        self.requests = self.requests.saturating_sub(requests);
        self.tokens = self.tokens.saturating_sub(tokens);
        Lease { reservations: self.reservations, engine: self.engine.clone(), requests, tokens }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let now = self.reservations.clock.now();
        self.reservations.slots().release(&self.engine, self.requests, self.tokens, now);
        self.reservations.notify();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rljob_protocol::desired::EngineEndpoint;
    use rljob_protocol::version::Version;

    use super::{Clock, Place, RequestCounts, Reservations, Slots, Wanted};
    use crate::engines::suitability::Limits;
    use crate::engines::weights::Weights;

    const CURRENT: Version = Version { step: 3, attempt: 0 };

    /// One engine that holds the current weights and has room for two requests.
    fn reservations() -> Reservations {
        let clock = Clock::start();
        let reservations = Reservations::new(Slots::default(), clock);
        let (name, url) = ("engine-0".to_owned(), "http://engine-0".to_owned());
        let mut slots = reservations.slots();
        slots.set(&[EngineEndpoint { name, url, uid: None }], clock.now());
        let slot = slots.get_mut("engine-0").unwrap();
        slot.answered("default".to_owned());
        slot.described(Ok(Limits { requests: 2 }));
        slot.update_begins();
        slot.update_ends(Some(CURRENT), clock.now());
        drop(slots);
        reservations
    }

    fn wanted(requests: u32) -> Wanted {
        let weights = Weights::Exactly(CURRENT);
        Wanted { preferred: None, weights, requests, tokens: u64::from(requests) * 10 }
    }

    fn place(step: u32) -> Place {
        Place { step, beside: false, position: 0 }
    }

    #[tokio::test]
    async fn an_interrupted_sample_of_a_full_engine_returns_to_it_before_later_groups() {
        let engine = reservations();
        let mut group = engine.lease(place(3), wanted(2)).await;
        let (first, second) = (group.split_one(10), group.split_one(10));
        let later = engine.lease(place(4), wanted(2));
        let again = engine.lease(place(3), wanted(1));
        tokio::pin!(later, again);
        assert!(later.as_mut().now_or_never().is_none(), "the engine is full");
        assert!(again.as_mut().now_or_never().is_none(), "the engine is full");
        drop(first);
        let again = again.now_or_never().expect("the reservation of the first is free");
        drop((group, second));
        assert!(later.as_mut().now_or_never().is_none(), "a request of step 3 runs");
        drop(again);
        let later = later.now_or_never().expect("the engine is idle");
        assert_eq!(engine.slots().tokens_in_flight(), 20);
        drop(later);
        assert_eq!(engine.slots().tokens_in_flight(), 0);
    }

    #[tokio::test]
    async fn a_request_that_is_cancelled_reserves_nothing() {
        let engine = reservations();
        let full = engine.lease(place(1), wanted(2)).await;
        let mut granted = Box::pin(engine.lease(place(2), wanted(2)));
        assert!(granted.as_mut().now_or_never().is_none());
        assert_eq!(engine.counts(), RequestCounts { running: 2, queued: 2 });
        drop(full);
        assert_eq!(engine.slots().tokens_in_flight(), 20, "it is granted, and not taken");
        drop(granted);
        let waiting = Box::pin(engine.lease(place(3), wanted(2)));
        drop(waiting);
        assert_eq!(engine.slots().tokens_in_flight(), 0);
        assert_eq!(engine.counts(), RequestCounts::default());
    }
}
