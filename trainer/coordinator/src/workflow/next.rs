//! What follows a turn of a sample.

/// What follows a turn: `T` is what is appended before the next completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// A further completion.
    Turn(T),
    /// Nothing: the sample is finished.
    End,
    /// Nothing, because `maxTurns` or `maxTokens` does not allow what would follow.
    Limit,
}

impl<T> Next<T> {
    /// The next turn, unless the sample is finished or has all turns.
    pub fn unless(is_finished: bool, is_last: bool, turn: impl FnOnce() -> T) -> Self {
        match (is_finished, is_last) {
            (true, _) => Self::End,
            (false, true) => Self::Limit,
            (false, false) => Self::Turn(turn()),
        }
    }
}
