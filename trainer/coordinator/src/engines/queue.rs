//! Requests that wait for a reservation, in the order in which they are served. Pure.
//!
//! Samples of earlier steps come first, so that an interrupted completion continues before later
//! ones begin. A request that does not fit lets smaller ones pass.

use std::collections::BTreeMap;

use crate::engines::weights::Weights;

/// Place in the queue: smaller ones are served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Step that needs the samples.
    pub step: u32,
    /// Whether training does not wait for them.
    pub beside: bool,
    /// Position of the prompt in the data.
    pub position: u64,
}

/// A wanted reservation.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The engine to take if it is free.
    pub preferred: Option<String>,
    pub weights: Weights,
    pub requests: u32,
    /// Tokens of all requests.
    pub tokens: u64,
}

/// Identifies a waiting request.
pub type Ticket = (Place, u64);

/// Waiting requests, each with what `W` needs to answer it.
#[derive(Debug)]
pub struct Queue<W> {
    waiting: BTreeMap<Ticket, (Wanted, W)>,
    next: u64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), next: 0 }
    }
}

impl<W> Queue<W> {
    /// Adds a request behind those of the same place.
    pub fn add(&mut self, place: Place, wanted: Wanted, answer: W) -> Ticket {
        let ticket = (place, self.next);
        self.next = self.next.wrapping_add(1);
        self.waiting.insert(ticket, (wanted, answer));
        ticket
    }

    /// Removes a request. Returns false if it was served.
    pub fn remove(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// Number of requests that wait, each completion counted.
    pub fn requests(&self) -> u32 {
        let requests = self.waiting.values().map(|(wanted, _)| wanted.requests);
        requests.fold(0, u32::saturating_add)
    }

    /// Removes and returns the requests that `reserve` serves, with what it returned.
    pub fn serve<R>(&mut self, mut reserve: impl FnMut(&Wanted) -> Option<R>) -> Vec<(W, R)> {
        let mut refused: Vec<(Weights, u32)> = Vec::new();
        let mut served = Vec::new();
        for (ticket, (wanted, _)) in &self.waiting {
            let is_refused = |(weights, requests): &(Weights, u32)| {
                *weights == wanted.weights && *requests <= wanted.requests
            };
            if refused.iter().any(is_refused) {
                continue;
            }
            match reserve(wanted) {
                Some(reserved) => served.push((*ticket, reserved)),
                None => refused.push((wanted.weights, wanted.requests)),
            }
        }
        let answer =
            |(ticket, reserved)| self.waiting.remove(&ticket).map(|(_, answer)| (answer, reserved));
        served.into_iter().filter_map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Queue, Wanted, Weights};

    fn place(step: u32, beside: bool, position: u64) -> Place {
        Place { step, beside, position }
    }

    fn wanted(weights: Weights, requests: u32) -> Wanted {
        Wanted { preferred: None, weights, requests, tokens: 1 }
    }

    /// Serves as many requests as `room`, and returns the answers in order.
    fn serve(queue: &mut Queue<&'static str>, mut room: u32) -> Vec<&'static str> {
        let served = queue.serve(|wanted| {
            let fits = wanted.weights == Weights::Since(0) && wanted.requests <= room;
            room -= if fits { wanted.requests } else { 0 };
            fits.then_some(())
        });
        served.into_iter().map(|(answer, ())| answer).collect()
    }

    #[test]
    fn interrupted_samples_of_earlier_steps_come_before_groups_of_later_ones() {
        let mut queue = Queue::default();
        let any = Weights::Since(0);
        queue.add(place(4, false, 64), wanted(any, 8), "a group of step 4");
        queue.add(place(4, true, 0), wanted(any, 2), "an evaluation beside step 4");
        queue.add(place(3, false, 9), wanted(any, 1), "a sample of step 3");
        queue.add(place(3, false, 9), wanted(any, 1), "another of its group");
        assert_eq!(serve(&mut queue, 2), ["a sample of step 3", "another of its group"]);
        assert_eq!(serve(&mut queue, 10), ["a group of step 4", "an evaluation beside step 4"]);
        assert_eq!(serve(&mut queue, 10), [""; 0]);
    }

    #[test]
    fn a_request_that_does_not_fit_lets_smaller_ones_and_other_weights_pass() {
        let mut queue = Queue::default();
        let any = Weights::Since(0);
        queue.add(place(1, false, 0), wanted(Weights::Since(1), 1), "newer weights");
        queue.add(place(1, false, 1), wanted(any, 8), "a group");
        let gone = queue.add(place(1, false, 2), wanted(any, 1), "cancelled");
        queue.add(place(1, false, 3), wanted(any, 1), "a sample");
        assert!(queue.remove(gone), "it was not served");
        assert_eq!(serve(&mut queue, 4), ["a sample"]);
        assert_eq!(serve(&mut queue, 8), ["a group"]);
        assert!(!queue.remove(gone));
    }
}
