//! Decision on an order of the coordinator, given the supervisor's state. Pure, so that lost,
//! repeated and late orders are tested in a table.

use rljob_protocol::supervisor::{Group, Order};

/// Epoch, attempt and learners of a supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupervisorState {
    /// Highest epoch of an accepted order.
    pub epoch: u64,
    /// Newest attempt that this supervisor started, running or not.
    pub attempt: Option<u32>,
    /// Number of running learners.
    pub running: usize,
}

/// Reaction to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do nothing.
    Keep,
    /// Start the learners of the group; no learner is running.
    Start(Group),
    /// Kill running learners; the order is repeated and then starts the next group.
    Kill,
    /// Kill running learners, then exit with code 0.
    Exit,
    /// Ignore the order, because a newer one was accepted before.
    Reject(String),
}

/// Decides on `order` from a coordinator of `epoch`. Learners of an attempt are started once; one
/// that exited is not restarted until a higher attempt is ordered.
pub fn decide(state: &SupervisorState, epoch: u64, order: &Order) -> Action {
    if epoch < state.epoch {
        return Action::Reject(format!(
            "an order of epoch {epoch} came after one of epoch {}",
            state.epoch
        ));
    }
    let end_running = if state.running > 0 { Action::Kill } else { Action::Keep };
    match order {
        Order::Wait => Action::Keep,
        Order::Stop => end_running,
        Order::Exit => Action::Exit,
        Order::Run(group) => match state.attempt {
            Some(attempt) if group.attempt < attempt => Action::Reject(format!(
                "an order of attempt {} came after one of attempt {attempt}",
                group.attempt
            )),
            Some(attempt) if group.attempt == attempt => Action::Keep,
            _ if state.running > 0 => Action::Kill,
            _ => Action::Start(group.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, SupervisorState, decide};
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
    fn every_order_has_one_action_in_every_state() {
        let state = |epoch, attempt, running| SupervisorState { epoch, attempt, running };
        let reject = |text: &str| Action::Reject(text.to_owned());
        let table = [
            ("wait without learners", state(0, None, 0), 0, Order::Wait, Action::Keep),
            (
                "a first order starts",
                state(0, None, 0),
                1,
                Order::Run(group(0)),
                Action::Start(group(0)),
            ),
            (
                "a repeated order changes nothing",
                state(1, Some(0), 2),
                1,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a learner that exited is not restarted",
                state(1, Some(0), 1),
                1,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a new coordinator finds the same attempt",
                state(1, Some(0), 2),
                2,
                Order::Run(group(0)),
                Action::Keep,
            ),
            (
                "a higher attempt kills running learners first",
                state(1, Some(0), 1),
                1,
                Order::Run(group(1)),
                Action::Kill,
            ),
            (
                "a higher attempt starts after they exited",
                state(1, Some(0), 0),
                1,
                Order::Run(group(1)),
                Action::Start(group(1)),
            ),
            (
                "a lower attempt is rejected",
                state(1, Some(3), 2),
                1,
                Order::Run(group(2)),
                reject("an order of attempt 2 came after one of attempt 3"),
            ),
            (
                "a lower epoch is rejected",
                state(2, Some(3), 2),
                1,
                Order::Run(group(4)),
                reject("an order of epoch 1 came after one of epoch 2"),
            ),
            (
                "an exit of a lower epoch is rejected",
                state(2, Some(3), 2),
                1,
                Order::Exit,
                reject("an order of epoch 1 came after one of epoch 2"),
            ),
            ("stop kills running learners", state(1, Some(0), 1), 1, Order::Stop, Action::Kill),
            (
                "stop without learners does nothing",
                state(1, Some(0), 0),
                1,
                Order::Stop,
                Action::Keep,
            ),
            ("exit at the end of the run", state(1, Some(0), 1), 1, Order::Exit, Action::Exit),
        ];
        for (case, state, epoch, order, action) in table {
            assert_eq!(decide(&state, epoch, &order), action, "{case}");
        }
    }
}
