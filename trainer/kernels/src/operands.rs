//! Operands and settings of operations, for their plain versions and for their kernels.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

/// Input and scale of a norm, for its derivative.
#[derive(Debug)]
pub struct NormSaved {
    pub x_TH: Tensor,
    /// `[T, 1]` fp32: 1 ÷ root of the mean square.
    pub scale_T1: Tensor,
}

/// Direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    /// The inverse, which is the derivative.
    Backward,
}

/// Settings of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f64,
    pub epsilon: f64,
    /// Number of this update, from 1.
    pub step: u64,
    /// Factor of the gradient, for clipping.
    pub scale: f64,
}

impl AdamW {
    /// Corrections of the biases of the first and second moment.
    pub(crate) fn corrections(&self) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(self.step as f64))
    }

    /// Numbers in the order of the kernel.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(&self) -> [f32; 8] {
        let [first, second] = self.corrections();
        [
            self.learning_rate,
            self.beta1,
            self.beta2,
            self.weight_decay,
            self.epsilon,
            first,
            second.sqrt(),
            self.scale,
        ]
        .map(|number| number as f32)
    }
}

/// Flat fp32 tensors of a block, and its weights in bfloat16.
#[derive(Debug)]
pub struct Operands<'a> {
    pub weights: &'a Tensor,
    pub gradient: &'a Tensor,
    pub first_moment: &'a Tensor,
    pub second_moment: &'a Tensor,
    /// Receives the new weights.
    pub copy: Option<&'a Tensor>,
    /// Factor of the gradient in place of that of the settings, fp32 of one element on the device
    /// of the weights. If it is not a number, nothing is updated.
    pub scale: Option<&'a Tensor>,
}

/// Discount γ and λ of advantages.
#[derive(Clone, Copy, Debug)]
pub struct Discounts<'a> {
    pub discount: f64,
    /// `[Q]` λ of each sequence, fp64.
    pub lambda_Q: &'a Tensor,
}

/// Trained tokens of packed sequences on a device. Tokens of a sequence are consecutive and in
/// order.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// `[Q]` int64, position after the last token of each sequence: `cu_seqlens` without its
    /// first 0. Ascending; the last is N.
    pub ends_Q: &'a Tensor,
    /// `[N]` values V, fp32.
    pub values_N: &'a Tensor,
    /// `[Q]` value after the last token of each sequence, fp32: 0 unless a limit ended it.
    pub end_values_Q: &'a Tensor,
}

/// Heads of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub queries: i64,
    /// Key heads, and value heads.
    pub keys: i64,
    pub size: i64,
}

impl Heads {
    /// Values of a row.
    pub fn width(self) -> i64 {
        (self.queries + 2 * self.keys) * self.size
    }

    pub(crate) fn scale(self) -> f64 {
        1.0 / (self.size as f64).sqrt()
    }
}

/// Rows that several spans attend to besides themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// First row of the prefix.
    pub first: i64,
    /// Rows of the prefix.
    pub rows: i64,
    /// Rows after the prefix that attend to it.
    pub followers: i64,
}

/// Size of a graph: it serves at most so many segments and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub segments: i64,
    /// Rows of the longest segment of queries.
    pub queries: i64,
    /// Rows of the longest segment of keys.
    pub keys: i64,
    /// Rows in all.
    pub tokens: i64,
}

impl Bucket {
    /// The bucket of segments of these lengths among `tokens` rows. Sizes are rounded up to about
    /// an eighth, so that batches of similar sizes share a graph; no kernel is slower in a larger
    /// bucket.
    fn of(queries: &[Segment], keys: &[Segment], tokens: i64) -> Self {
        let longest = |segments: &[Segment]| {
            rounded_up(segments.iter().map(|segment| segment.length).max().unwrap_or(0), 128)
        };
        Self {
            segments: rounded_up(queries.len() as i64, 8),
            queries: longest(queries),
            keys: longest(keys),
            tokens: rounded_up(tokens, 1024),
        }
    }
}

/// The next multiple of an eighth of the next power of two, and of `unit`.
fn rounded_up(number: i64, unit: i64) -> i64 {
    let eighth = (number.max(1) as u64).next_power_of_two() as i64 / 8;
    let unit = unit.max(eighth);
    (number.max(1) + unit - 1) / unit * unit
}

/// Adjacent rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: i64,
    pub(crate) length: i64,
}

/// Segments of queries, each with the segment of keys that it attends to, on a device.
#[derive(Debug)]
pub(crate) struct Segments {
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) bucket: Bucket,
    /// Whether a query attends to the keys up to its own row only.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for the kernel"))]
    pub(crate) causal: bool,
    /// Inputs of a graph: `[B + 1]` int64, the first element of each segment in queries, outputs,
    /// statistics and keys; `[B]` int32, the rows of each segment of queries and keys, 0 after the
    /// last.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) inputs: [Tensor; 6],
}

impl Segments {
    fn new(
        queries: &[Segment],
        keys: &[Segment],
        tokens: i64,
        causal: bool,
        (heads, device): (Heads, tch::Device),
    ) -> Self {
        let bucket = Bucket::of(queries, keys, tokens);
        let number = bucket.segments as usize;
        let starts = |segments: &[Segment]| {
            let end = segments.last().map_or(0, |last| last.first + last.length);
            let mut starts: Vec<i64> = segments.iter().map(|segment| segment.first).collect();
            starts.resize(number + 1, end);
            Tensor::from_slice(&starts).to_device(device)
        };
        let lengths = |segments: &[Segment]| {
            let mut rows: Vec<i32> = segments.iter().map(|segment| segment.length as i32).collect();
            rows.resize(number, 0);
            Tensor::from_slice(&rows).to_device(device)
        };
        let (query, key) = (starts(queries), starts(keys));
        let inputs = [
            &query * heads.width(),
            &query * (heads.queries * heads.size),
            &query * heads.queries,
            &key * heads.width(),
            lengths(queries),
            lengths(keys),
        ];
        Self { bucket, causal, inputs }
    }
}

/// Packed sequences of a micro-batch on a device, as spans of rows. A row attends to its span up to
/// itself, and to the prefix that its span follows.
#[derive(Debug)]
pub struct Sequences {
    pub(crate) lengths: Vec<i64>,
    pub(crate) prefixes: Vec<Prefix>,
    pub(crate) heads: Heads,
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) within_spans: Segments,
    /// `None` without prefixes.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) over_prefixes: Option<Segments>,
    /// Whether the derivative repeats bit for bit.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for the kernel"))]
    pub(crate) deterministic: bool,
}

impl Sequences {
    /// Spans of `lengths` rows, one after the other.
    pub fn new(
        lengths: &[i64],
        prefixes: &[Prefix],
        heads: Heads,
        device: tch::Device,
        deterministic: bool,
    ) -> Self {
        let tokens = lengths.iter().sum();
        let spans: Vec<Segment> = spans(lengths).collect();
        let place = (heads, device);
        let over_prefixes = (!prefixes.is_empty()).then(|| {
            let keys = |prefix: &Prefix| Segment { first: prefix.first, length: prefix.rows };
            let queries = |prefix: &Prefix| Segment {
                first: prefix.first + prefix.rows,
                length: prefix.followers,
            };
            let [queries, keys] = [
                prefixes.iter().map(queries).collect::<Vec<_>>(),
                prefixes.iter().map(keys).collect(),
            ];
            Segments::new(&queries, &keys, tokens, false, place)
        });
        Self {
            lengths: lengths.to_vec(),
            prefixes: prefixes.to_vec(),
            heads,
            within_spans: Segments::new(&spans, &spans, tokens, true, place),
            over_prefixes,
            deterministic,
        }
    }

    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// The prefix that the span at this row follows.
    pub(crate) fn prefix_of(&self, row: i64) -> Option<Prefix> {
        let follows = |prefix: &&Prefix| {
            let first = prefix.first + prefix.rows;
            (first..first + prefix.followers).contains(&row)
        };
        self.prefixes.iter().find(follows).copied()
    }
}

/// Spans of these lengths, one after the other.
pub(crate) fn spans(lengths: &[i64]) -> impl Iterator<Item = Segment> + '_ {
    lengths.iter().scan(0, |end, &length| {
        let first = *end;
        *end += length;
        Some(Segment { first, length })
    })
}

/// Operands of the derivative.
#[derive(Debug)]
pub struct AttentionSaved {
    /// `[T, W]`
    pub qkv_TW: Tensor,
    /// `[T, A · D]`
    pub out_TH: Tensor,
    /// Logarithm of the sum of exponentials over all keys `[T, A]`, fp32. Empty in the plain
    /// version.
    pub statistics_TA: Tensor,
}
