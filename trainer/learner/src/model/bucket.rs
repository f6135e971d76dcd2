//! Padded layout of packed rows for attention: buckets of spans of similar length.

use std::collections::BTreeMap;

use tch::Tensor;

/// Spans of similar length, padded on the right to one length for attention. The causal mask keeps
/// padding from changing other rows.
#[derive(Debug)]
pub struct Bucket {
    pub num_spans: i64,
    /// Padded length.
    pub padded: i64,
    rows: Rows,
}

/// Source rows of a bucket's `[B × S]` slots.
#[derive(Debug)]
enum Rows {
    /// Consecutive rows of the packed tensor from this one, without padding.
    From(i64),
    Scattered {
        /// Rows of the packed tensor, span by span.
        rows: Tensor,
        /// Slots of these rows.
        slots: Tensor,
        /// Row of every slot; for padding, the span's first row.
        sources: Tensor,
        /// Slots of padding.
        padding: Tensor,
    },
}

impl Bucket {
    /// The bucket's rows of `x` `[T, …]` in padded form `[B × S, …]`; values at padding are finite
    /// but meaningless.
    pub fn pad(&self, x: &Tensor) -> Tensor {
        match &self.rows {
            Rows::From(first) => x.narrow(0, *first, self.num_spans * self.padded),
            Rows::Scattered { sources, .. } => x.index_select(0, sources),
        }
    }

    /// As [`Self::pad`], with `value` at padding.
    pub fn pad_with(&self, value: f64, x: &Tensor) -> Tensor {
        let mut padded = self.pad(x);
        match &self.rows {
            Rows::From(_) => padded,
            Rows::Scattered { padding, .. } => padded.index_fill_(0, padding, value),
        }
    }

    /// Copies the padded `x` `[B × S, …]` back to its rows of `out` `[T, …]`.
    pub fn unpad_into(&self, out: &mut Tensor, x: &Tensor) {
        match &self.rows {
            Rows::From(first) => out.narrow(0, *first, self.num_spans * self.padded).copy_(x),
            Rows::Scattered { rows, slots, .. } => {
                drop(out.index_copy_(0, rows, &x.index_select(0, slots)));
            }
        }
    }
}

/// Buckets of `spans`, given as (first row, rows) in ascending order; none is empty. One bucket per
/// power of two: at most half of a bucket is padding, and the number of attention calls is
/// independent of the number of spans.
pub fn buckets(spans: &[(usize, usize)]) -> Vec<Bucket> {
    let mut by_size: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for &(first, length) in spans {
        by_size.entry(length.next_power_of_two()).or_default().push((first, length));
    }
    by_size.into_values().map(|spans| bucket(&spans)).collect()
}

/// The bucket of `spans`, at least one.
fn bucket(spans: &[(usize, usize)]) -> Bucket {
    let padded = spans.iter().map(|&(_, length)| length).max().unwrap_or(0);
    let (num_spans, first) = (spans.len() as i64, spans.first().map_or(0, |&(first, _)| first));
    let dense =
        spans.iter().enumerate().all(|(index, &place)| place == (first + index * padded, padded));
    let rows = if dense { Rows::From(first as i64) } else { scattered(spans, padded) };
    Bucket { num_spans, padded: padded as i64, rows }
}

fn scattered(spans: &[(usize, usize)], padded: usize) -> Rows {
    let places = spans.iter().enumerate().flat_map(|(index, &(first, length))| {
        (0..padded).map(move |place| (index * padded + place, first, place, length))
    });
    let mut sources = Vec::with_capacity(spans.len() * padded);
    let (mut rows, mut slots, mut padding) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, first, place, length) in places {
        if place < length {
            rows.push((first + place) as i64);
            slots.push(slot as i64);
        } else {
            padding.push(slot as i64);
        }
        sources.push((first + if place < length { place } else { 0 }) as i64);
    }
    let [rows, slots, sources, padding] =
        [rows, slots, sources, padding].map(|values| Tensor::from_slice(&values));
    Rows::Scattered { rows, slots, sources, padding }
}

#[cfg(test)]
mod tests {
    use super::buckets;
    use tch::{Device, Kind, Tensor};

    fn vec(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn spans_of_similar_length_share_a_padded_bucket() {
        let buckets = buckets(&[(0, 3), (3, 5), (8, 4)]);
        let shapes: Vec<_> =
            buckets.iter().map(|bucket| (bucket.num_spans, bucket.padded)).collect();
        assert_eq!(shapes, [(2, 4), (1, 5)]);
        let x = Tensor::arange(12, (Kind::Int64, Device::Cpu));
        assert_eq!(vec(&buckets[0].pad(&x)), [0, 1, 2, 0, 8, 9, 10, 11]);
        assert_eq!(vec(&buckets[0].pad_with(7.0, &x)), [0, 1, 2, 7, 8, 9, 10, 11]);
        let mut out = Tensor::from_slice(&[-1_i64; 12]);
        buckets[0].unpad_into(&mut out, &Tensor::arange(8, (Kind::Int64, Device::Cpu)));
        buckets[1].unpad_into(&mut out, &Tensor::from_slice(&[20_i64, 21, 22, 23, 24]));
        assert_eq!(vec(&out), [0, 1, 2, 20, 21, 22, 23, 24, 4, 5, 6, 7]);
    }

    #[test]
    fn adjacent_spans_of_one_length_are_not_copied() {
        let x = Tensor::arange(9, (Kind::Int64, Device::Cpu));
        let buckets = buckets(&[(0, 3), (3, 3), (6, 3)]);
        assert_eq!(buckets[0].pad(&x).data_ptr(), x.data_ptr());
    }
}
