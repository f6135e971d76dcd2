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

/// Size of a graph: it serves at most so many sequences and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub sequences: i64,
    /// Tokens of the longest sequence.
    pub length: i64,
    /// Tokens in all.
    pub tokens: i64,
}

impl Bucket {
    /// The bucket of sequences of these lengths. Sizes are rounded up to about an eighth, so that
    /// batches of similar sizes share a graph; no kernel is slower in a larger bucket.
    pub fn of(lengths: &[i64]) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        Self {
            sequences: rounded_up(lengths.len() as i64, 8),
            length: rounded_up(longest, 128),
            tokens: rounded_up(lengths.iter().sum(), 1024),
        }
    }
}

/// The next multiple of an eighth of the next power of two, and of `unit`.
fn rounded_up(number: i64, unit: i64) -> i64 {
    let eighth = (number.max(1) as u64).next_power_of_two() as i64 / 8;
    let unit = unit.max(eighth);
    (number.max(1) + unit - 1) / unit * unit
}

/// Packed sequences of a micro-batch on a device.
#[derive(Debug)]
pub struct Sequences {
    pub(crate) lengths: Vec<i64>,
    pub(crate) heads: Heads,
    bucket: Bucket,
    /// `[B + 1]` int64: first element of each sequence in rows, outputs and statistics.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) offsets: [Tensor; 3],
    /// `[B]` int32; 0 after the last sequence.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "for the kernel"))]
    pub(crate) lengths_B: Tensor,
    /// Whether the derivative repeats bit for bit.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for the kernel"))]
    deterministic: bool,
}

impl Sequences {
    /// Sequences of `lengths` tokens, one after the other.
    pub fn new(lengths: &[i64], heads: Heads, device: tch::Device, deterministic: bool) -> Self {
        let bucket = Bucket::of(lengths);
        let mut starts = Vec::with_capacity(bucket.sequences as usize + 1);
        let mut end = 0;
        for at in 0..=bucket.sequences as usize {
            starts.push(end);
            end += lengths.get(at).copied().unwrap_or(0);
        }
        let mut padded: Vec<i32> = lengths.iter().map(|length| *length as i32).collect();
        padded.resize(bucket.sequences as usize, 0);
        let starts = Tensor::from_slice(&starts).to_device(device);
        let offsets =
            [heads.width(), heads.queries * heads.size, heads.queries].map(|width| &starts * width);
        let lengths_B = Tensor::from_slice(&padded).to_device(device);
        let lengths = lengths.to_vec();
        Self { lengths, heads, bucket, offsets, lengths_B, deterministic }
    }

    pub fn heads(&self) -> Heads {
        self.heads
    }

    pub fn bucket(&self) -> Bucket {
        self.bucket
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn inputs(&self) -> [&Tensor; 4] {
        let [rows, outs, statistics] = &self.offsets;
        [rows, outs, statistics, &self.lengths_B]
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn deterministic(&self) -> bool {
        self.deterministic
    }
}

/// Operands of the derivative.
#[derive(Debug)]
pub struct AttentionSaved {
    /// `[T, W]`
    pub qkv_TW: Tensor,
    /// `[T, A · D]`
    pub out_TH: Tensor,
    /// Logarithm of the sum of exponentials `[T, A]`, fp32. Empty in the plain version.
    pub statistics_TA: Tensor,
}
