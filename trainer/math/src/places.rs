//! Places of the final answer.

/// Place of the final answer in a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Text after the last `####` on its line.
    Hashes,
    /// The content of the last `\boxed{}`.
    Boxed,
    /// Text after the last `answer is` or `answer:` in its sentence, in any case.
    Phrase,
    /// The last formula between `$`, `\(` and `\)` or `\[` and `\]`.
    Formula,
    /// The last number of the text.
    LastNumber,
}

impl Place {
    /// The default order of search.
    pub const DEFAULT: [Self; 5] =
        [Self::Hashes, Self::Boxed, Self::Phrase, Self::Formula, Self::LastNumber];
}
