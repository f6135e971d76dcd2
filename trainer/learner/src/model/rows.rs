//! Rows of a packed tensor: which token of the input each row has, and which rows attend to which.
//! Pure.
//!
//! ```text
//!  input   [5 6 7] [5 6 8 9] [3 4]      the first two sequences share the prefix 5 6
//!  rows     5 6 7 8 9 3 4               spans  5 6 | 7 | 8 9 | 3 4
//!  position 0 1 2 2 3 0 1
//! ```
//! A row attends to the rows of its span up to itself. The spans after a shared prefix also attend
//! to all rows of the prefix, and their positions continue after it.

use std::ops::Range;

use rljob_kernels::attention::Prefix;

/// Leading tokens that consecutive sequences share, to be computed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPrefix {
    /// The sequences.
    pub sequences: Range<usize>,
    /// Number of tokens.
    pub tokens: usize,
}

/// Rows of sequences, in order, each shared prefix before its sequences.
#[derive(Debug, Default)]
pub struct PackedRows {
    /// Input token of every row, as an index.
    pub tokens: Vec<usize>,
    /// Position of every row in its sequence.
    pub positions: Vec<i64>,
    /// Row of every input token.
    pub row_of: Vec<i64>,
    /// (first row, rows) of every span.
    pub spans: Vec<(usize, usize)>,
    pub prefixes: Vec<Prefix>,
}

impl PackedRows {
    /// Rows of sequences of `lengths` tokens. `prefixes` are in order, do not overlap and are not
    /// longer than their sequences.
    pub fn new(lengths: &[usize], prefixes: &[SharedPrefix]) -> Self {
        let (mut rows, mut prefixes, mut index) = (Self::default(), prefixes.iter().peekable(), 0);
        while index < lengths.len() {
            if let Some(prefix) = prefixes.next_if(|prefix| prefix.sequences.start == index) {
                rows.add_sharing(&lengths[prefix.sequences.clone()], prefix.tokens);
                index = prefix.sequences.end;
            } else {
                rows.add(lengths[index], 0);
                index += 1;
            }
        }
        rows
    }

    fn add_sharing(&mut self, lengths: &[usize], prefix: usize) {
        let first = self.tokens.len();
        for (index, length) in lengths.iter().enumerate() {
            if index == 0 {
                self.add(prefix, 0);
            } else {
                self.row_of.extend((first..first + prefix).map(|row| row as i64));
            }
            self.add(length - prefix, prefix);
        }
        let followers = self.tokens.len() - first - prefix;
        if followers > 0 {
            let [first, rows, followers] = [first, prefix, followers].map(|count| count as i64);
            self.prefixes.push(Prefix { first, rows, followers });
        }
    }

    /// Adds a span of the next tokens of the input.
    fn add(&mut self, length: usize, position: usize) {
        if length == 0 {
            return;
        }
        let (token, row) = (self.row_of.len(), self.tokens.len());
        self.spans.push((row, length));
        self.tokens.extend(token..token + length);
        self.row_of.extend((row..row + length).map(|row| row as i64));
        self.positions.extend((position..position + length).map(|position| position as i64));
    }
}

#[cfg(test)]
mod tests {
    use super::{PackedRows, Prefix, SharedPrefix};

    #[test]
    fn the_worked_example_has_the_documented_rows() {
        let rows = PackedRows::new(&[3, 4, 2], &[SharedPrefix { sequences: 0..2, tokens: 2 }]);
        assert_eq!(rows.tokens, [0, 1, 2, 5, 6, 7, 8]);
        assert_eq!(rows.positions, [0, 1, 2, 2, 3, 0, 1]);
        assert_eq!(rows.row_of, [0, 1, 2, 0, 1, 3, 4, 5, 6]);
        assert_eq!(rows.spans, [(0, 2), (2, 1), (3, 2), (5, 2)]);
        assert_eq!(rows.prefixes, [Prefix { first: 0, rows: 2, followers: 3 }]);
    }

    #[test]
    fn sequences_that_are_the_prefix_add_no_rows() {
        let rows = PackedRows::new(&[1, 2, 2, 3], &[SharedPrefix { sequences: 1..3, tokens: 2 }]);
        assert_eq!(rows.tokens, [0, 1, 2, 5, 6, 7]);
        assert_eq!(rows.row_of, [0, 1, 2, 1, 2, 3, 4, 5]);
        assert_eq!(rows.spans, [(0, 1), (1, 2), (3, 3)]);
        assert_eq!(rows.prefixes, []);
    }
}
