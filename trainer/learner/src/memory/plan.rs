//! Estimate of the memory of a learner on a GPU, in bytes.
//!
//! With P parameters of which a rank has the share S, N ranks that divide them, e bytes in the
//! compute type:
//!
//! ```text
//!  weights       4 · S, unless they are in memory of the host, and 2 · S for the copy in BF16 if
//!                they are or N = 1
//!  gradients     4 · S
//!  optimizer     8 · S, unless it is in memory of the host
//!  buffers       (e + 4) · the buffers of whole blocks (`fsdp`), if N > 1
//!  critic        weights, gradients, optimizer and buffers of the critic, or of the value head
//!  reference     e · S of the frozen model, and e · its buffers of whole blocks
//!  teacher       the same of the teacher, whose shape may be another
//!  base          the same of the frozen base of adapters, and (e + 4) · the largest block: its
//!                merged weights and their gradient
//!  publication   e · P, the copy that engines or an export read while training continues
//!  activations   per token: e · H of each layer, or all that its backward pass needs, or that
//!                without the outputs of norms, 2 · e · H
//!  work          per token: the largest temporaries, of the head or of a layer's backward pass
//! ```
//! With adapters, which are fp32, P is their number in the first five lines. The reference is their
//! base. With dropout of their inputs, `work` has the masks of the largest input: the numbers of
//! which it is made, twice 4 bytes, the factors and the product.
//!
//! A learner of a group of `trainer.groups` has the line `reference` or `teacher`, and `work` with
//! the temporaries of a layer's forward pass.
//!
//! Symbols as in `model`. Context of CUDA, libraries and fragmentation are not part of it
//! ([`super::fit`]).

use rljob_crds::algorithm::{OptimizerSpec, Sharding};
use rljob_crds::status::gib;

use crate::fsdp::{Buffers, shard_numel};
use crate::mesh::GroupSize;
use crate::model::{ModelConfig, ModelLayout, Recomputed, rows_of_device_chunk};

/// What the memory of a learner depends on.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub config: &'a ModelConfig,
    pub layout: &'a ModelLayout,
    pub size: GroupSize,
    /// Bytes of an element in the compute type, 2 or 4.
    pub element: u64,
    /// Whether a policy is trained. Otherwise the frozen models are all that the learner has.
    pub trains: bool,
    pub sharding: Sharding,
    pub offload: Offload,
    /// The critic or value head, if one is trained beside the policy.
    pub critic: Option<Critic<'a>>,
    /// Layout of the policy's adapters, if adapters are trained. `layout` is that of their base.
    pub adapters: Option<&'a ModelLayout>,
    /// Whether the inputs of adapters have dropout.
    pub dropout: bool,
    /// Frozen models of the policy's shape, except the base of adapters.
    pub frozen: u64,
    /// Layout of the teacher, which is frozen; its shape may differ from the policy's.
    pub teacher: Option<&'a ModelLayout>,
    /// Whether the loss has no term that `klCoefficient: 0` leaves out with the reference model.
    pub needs_reference: bool,
    /// Tokens of a micro-batch.
    pub tokens: u64,
}

impl Settings<'_> {
    /// Number of ranks that divide a model.
    fn shards(&self) -> u32 {
        self.size.shards(self.sharding)
    }
}

/// What the memory of a critic depends on.
#[derive(Clone, Copy, Debug)]
pub struct Critic<'a> {
    /// Layout of what is trained.
    pub layout: &'a ModelLayout,
    pub offload: Offload,
}

/// What a trained model has in memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The moments of the optimizer.
    pub moments: bool,
    /// The fp32 weights, if passes use BF16 and adapters do not replace the weights.
    pub weights: bool,
}

impl Offload {
    /// What a learner with or without a GPU has there.
    pub fn of(spec: &OptimizerSpec, has_gpu: bool) -> Self {
        Self { moments: spec.offload && has_gpu, weights: spec.offload_weights && has_gpu }
    }
}

/// Parts of the memory of a learner, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub buffers: u64,
    pub critic: u64,
    pub reference: u64,
    pub teacher: u64,
    pub base: u64,
    pub publication: u64,
    pub activations: u64,
    pub work: u64,
    /// Activations that are computed again in the backward pass.
    pub recomputed: Recomputed,
}

impl MemoryPlan {
    /// The plan of passes that compute these activations again.
    pub fn new(settings: &Settings<'_>, recomputed: Recomputed) -> Self {
        let Settings { layout, element, frozen, .. } = *settings;
        let count = settings.shards();
        let held = |layout| element * held(layout, count);
        let (reference, teacher) = (frozen * held(layout), settings.teacher.map_or(0, held));
        if !settings.trains {
            return Self { reference, teacher, work: forward_pass(settings), ..Self::default() };
        }
        let Trained { weights, gradients, optimizer, buffers } =
            Trained::new(settings, settings.adapters.unwrap_or(layout), settings.offload);
        let largest = layout.block_numels().into_iter().max().unwrap_or(0).unsigned_abs();
        let merged = |_| held(layout) + (element + 4) * largest;
        let (activations, work) = passes(settings, recomputed);
        Self {
            weights,
            gradients,
            optimizer,
            buffers,
            critic: settings
                .critic
                .map_or(0, |critic| Trained::new(settings, critic.layout, critic.offload).total()),
            reference,
            teacher,
            base: settings.adapters.map_or(0, merged),
            publication: layout.numel().unsigned_abs() * element,
            activations,
            work,
            recomputed,
        }
    }

    /// Bytes that do not depend on the batch.
    pub fn fixed(&self) -> u64 {
        self.weights
            + self.gradients
            + self.optimizer
            + self.buffers
            + self.critic
            + self.reference
            + self.teacher
            + self.base
            + self.publication
    }

    /// Bytes at the peak of a step.
    pub fn total(&self) -> u64 {
        self.fixed() + self.activations + self.work
    }

    /// The parts that do not depend on the batch, with their names.
    pub fn fixed_parts(&self) -> [(&'static str, u64); 9] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer states", self.optimizer),
            ("buffers of whole blocks", self.buffers),
            ("the critic", self.critic),
            ("the reference model", self.reference),
            ("the teacher", self.teacher),
            ("the base of the adapters", self.base),
            ("the copy for engines and exports", self.publication),
        ]
    }

    /// All parts, with their names.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let passes = [("activations", self.activations), ("temporaries", self.work)];
        self.fixed_parts().into_iter().chain(passes)
    }
}

/// Parts of a model that is trained, in bytes.
struct Trained {
    weights: u64,
    gradients: u64,
    optimizer: u64,
    buffers: u64,
}

impl Trained {
    fn new(settings: &Settings<'_>, layout: &ModelLayout, offload: Offload) -> Self {
        let count = settings.shards();
        let element = if settings.adapters.is_some() { 4 } else { settings.element };
        let shards = shards(layout, count);
        let share: u64 = shards.iter().sum();
        let largest = if count > 1 { shards.iter().max().copied().unwrap_or(0) } else { 0 };
        let whole = whole_blocks(Buffers::of(settings.sharding), &shards, count);
        let weights = match element {
            2 if offload.weights => 2,
            2 if count == 1 => 6,
            _ => 4,
        };
        Self {
            weights: share * weights,
            gradients: share * 4,
            optimizer: if offload.moments { 0 } else { share * 8 },
            buffers: whole * (element + 4) + largest * 4,
        }
    }

    fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.buffers
    }
}

/// Elements of a rank's shard of each block, of which there are `count`.
fn shards(layout: &ModelLayout, count: u32) -> Vec<u64> {
    let numels = layout.block_numels().into_iter();
    numels.map(|numel| shard_numel(numel, count).unsigned_abs()).collect()
}

impl std::fmt::Display for MemoryPlan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", gib(self.total()))?;
        for (index, (name, bytes)) in self.parts().filter(|(_, bytes)| *bytes > 0).enumerate() {
            write!(formatter, "{}{name} {}", if index == 0 { " = " } else { " + " }, gib(bytes))?;
        }
        // A learner without a policy has no backward pass.
        if self.weights == 0 {
            return Ok(());
        }
        let Recomputed { layers, selective } = self.recomputed;
        write!(formatter, "; {layers} layers are computed again")?;
        if selective > 0 { write!(formatter, ", and the norms of {selective}") } else { Ok(()) }
    }
}

/// Elements that a rank holds of a frozen model: its shard, and buffers of whole blocks.
fn held(layout: &ModelLayout, count: u32) -> u64 {
    let shards = shards(layout, count);
    shards.iter().sum::<u64>() + whole_blocks(Buffers::Ring, &shards, count)
}

/// Elements of the buffers of whole blocks, of `count` shards each.
fn whole_blocks(buffers: Buffers, shards: &[u64], count: u32) -> u64 {
    if count == 1 {
        return 0;
    }
    let lengths = buffers.lengths(shards.iter().map(|shard| *shard as usize));
    lengths.iter().map(|length| length.unsigned_abs()).sum::<u64>() * u64::from(count)
}

/// Bytes of a layer's passes for each token.
struct LayerBytes {
    /// What the forward pass keeps for the backward pass.
    kept: u64,
    /// The outputs of norms, a part of `kept`.
    norms: u64,
    /// Temporaries of the forward pass besides.
    forward: u64,
    /// Temporaries of the backward pass.
    backward: u64,
}

impl LayerBytes {
    fn new(config: &ModelConfig, element: u64) -> Self {
        let [hidden, inner, heads, keys, size] = [
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        ]
        .map(i64::unsigned_abs);
        let (queries, row) = (heads * size, (heads + 2 * keys) * size);
        // Copies of queries and keys before the norms of their heads.
        let head_norms = if config.qk_norm { (heads + keys) * (element * size + 4) } else { 0 };
        let norms = element * 2 * hidden;
        let most = element * (2 * hidden + row + queries + 2 * inner) + 4 * (heads + 2);
        let kept = most + norms + head_norms;
        let backward = element * (4 * inner + 4 * hidden + row + 2 * queries) + 4 * queries;
        Self { kept, norms, forward: element * (inner + hidden), backward }
    }
}

/// Bytes of a pass: what the forward pass keeps, and the largest temporaries besides.
fn passes(settings: &Settings<'_>, recomputed: Recomputed) -> (u64, u64) {
    let Settings { config, element, tokens, .. } = *settings;
    let LayerBytes { kept, norms, mut backward, .. } = LayerBytes::new(config, element);
    if settings.dropout {
        backward += (2 * 4 + 2 * element) * largest_input(config);
    }
    let layers = config.num_hidden_layers as u64;
    let inputs = (recomputed.layers as u64).min(layers);
    let selective = (recomputed.selective as u64).min(layers - inputs);
    let whole = layers - inputs - selective;
    let hidden = config.hidden_size.unsigned_abs();
    let input = element * hidden;
    // What the first layer of the backward pass computes again. Later ones have the memory of that.
    let again = match (whole, selective) {
        (0, 0) => kept,
        (0, _) => norms,
        _ => 0,
    };
    let layer = backward + again;
    let activations = tokens * (whole * kept + selective * (kept - norms) + inputs * input);
    let table = config.vocab_size.unsigned_abs() * hidden * 4;
    let embedding = if config.tie_word_embeddings { 0 } else { table };
    (activations, head(settings).max(tokens * layer).max(embedding))
}

/// Columns of the largest input of a linear layer.
fn largest_input(config: &ModelConfig) -> u64 {
    let queries = config.num_attention_heads * config.head_dim;
    config.intermediate_size.max(config.hidden_size).max(queries).unsigned_abs()
}

/// Bytes of a forward pass that keeps nothing.
fn forward_pass(settings: &Settings<'_>) -> u64 {
    let LayerBytes { kept, forward, .. } = LayerBytes::new(settings.config, settings.element);
    head(settings).max(settings.tokens * (kept + forward))
}

/// Bytes of the head: the logits of a chunk, in FP32 with their softmax, and the hidden states of
/// all tokens with their derivatives.
fn head(settings: &Settings<'_>) -> u64 {
    let Settings { config, element, tokens, .. } = *settings;
    let vocab_size = config.vocab_size.unsigned_abs();
    let rows = rows_of_device_chunk(config.vocab_size).unsigned_abs().min(tokens);
    let logits = if element == 2 { 2 } else { 8 };
    rows * vocab_size * logits + 5 * element * tokens * config.hidden_size.unsigned_abs()
}
