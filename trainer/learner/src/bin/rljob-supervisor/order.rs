//! What follows from an order, given what the supervisor has: pure, so that a lost, repeated or
//! late order can be reasoned about in a table.

use rljob_protocol::supervisor::{Group, Order};

/// What the supervisor has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The highest epoch whose order was accepted.
    pub epoch: u64,
    /// The newest incarnation that was started here, whether or not its learners still run.
    pub attempt: Option<u32>,
    /// Learners that still run.
    pub running: usize,
}

/// What the supervisor does about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// Start the group's learners; none runs.
    Start(Group),
    /// End the learners that run; the same order, given again, goes on from there.
    Kill,
    /// End the learners that run, then exit with code 0.
    Exit,
    /// Do nothing: the order comes from the past.
    Refuse(String),
}

/// What to do about `order` of the coordinator of this epoch. Learners of an incarnation are
/// started once: one that ended stays ended until a higher attempt is ordered.
pub fn decide(held: &Held, epoch: u64, order: &Order) -> Action {
    if epoch < held.epoch {
        return Action::Refuse(format!(
            "an order of epoch {epoch} came after one of epoch {}",
            held.epoch
        ));
    }
    let end_running = if held.running > 0 { Action::Kill } else { Action::Keep };
    match order {
        Order::Wait => Action::Keep,
        Order::Stop => end_running,
        Order::Exit => Action::Exit,
        Order::Run(group) => match held.attempt {
            Some(attempt) if group.attempt < attempt => Action::Refuse(format!(
                "an order of attempt {} came after one of attempt {attempt}",
                group.attempt
            )),
            Some(attempt) if group.attempt == attempt => Action::Keep,
            _ if held.running > 0 => Action::Kill,
            _ => Action::Start(group.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Held, decide};
    use rljob_protocol::supervisor::{Group, Order};

    fn group(attempt: u32) -> Group {
        Group {
            attempt,
            first_rank: 2,
            world_size: 4,
            rendezvous_address: "trainer-0".into(),
            rendezvous_port: 29400,
            restore: None,
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table of cases")]
    fn every_order_meets_every_state_with_one_answer() {
        let held = |epoch, attempt, running| Held { epoch, attempt, running };
        let refuse = |text: &str| Action::Refuse(text.to_owned());
        let table = [
            ("nothing yet", held(0, None, 0), 0, Order::Wait, Action::Keep),
            (
                "a first order starts",
                held(0, None, 0),
                1,
                Order::Run(group(0)),
                Action::Start(group(0)),
            ),
            (
                "a repeated order changes nothing",
                held(1, Some(0), 2),
                1,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a learner that ended is not started again",
                held(1, Some(0), 1),
                1,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a new coordinator finds the same attempt",
                held(1, Some(0), 2),
                2,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a higher attempt ends the old one first",
                held(1, Some(0), 1),
                1,
                Order::Run(group(1)),
                Action::Kill,
            ),
            (
                "and starts when it has ended",
                held(1, Some(0), 0),
                1,
                Order::Run(group(1)),
                Action::Start(group(1)),
            ),
            (
                "a lower attempt is refused",
                held(1, Some(3), 2),
                1,
                Order::Run(group(2)),
                refuse("an order of attempt 2 came after one of attempt 3"),
            ),
            (
                "a lower epoch is refused",
                held(2, Some(3), 2),
                1,
                Order::Run(group(4)),
                refuse("an order of epoch 1 came after one of epoch 2"),
            ),
            (
                "it can neither stop nor end anybody",
                held(2, Some(3), 2),
                1,
                Order::Exit,
                refuse("an order of epoch 1 came after one of epoch 2"),
            ),
            ("stop ends what runs", held(1, Some(0), 1), 1, Order::Stop, Action::Kill),
            ("stop of nothing is nothing", held(1, Some(0), 0), 1, Order::Stop, Action::Keep),
            ("the run is over", held(1, Some(0), 1), 1, Order::Exit, Action::Exit),
        ];
        for (case, held, epoch, order, action) in table {
            assert_eq!(decide(&held, epoch, &order), action, "{case}");
        }
    }
}
