//! Loss and gradients of one minibatch on any number of ranks, each on a thread, before the update.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::Sharding;
use rljob_learner::fsdp::{Passes, ShardedParameters, shard_of};
use rljob_learner::mesh::{GroupSize, Mesh};
use rljob_learner::model::{Model, ModelConfig, PackedTokens, hugging_face, random};
use rljob_learner::objective::sft;
use rljob_learner::ranks::Ranks;
use tch::{Device, Kind, Tensor};

/// Sequences of the batch, assigned to ranks in turn; each rank has four micro-batches.
const SEQUENCES: usize = 16;
const MICRO_BATCHES: usize = 4;

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 512,
        hidden_size: 64,
        intermediate_size: 176,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        qkv_bias: false,
        qk_norm: false,
        rope_theta: 10000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        max_position_embeddings: 256,
        eos_token_ids: vec![2],
        bos_token_id: None,
        initializer_range: 0.1,
    }
}

fn lengths() -> Vec<usize> {
    (0..SEQUENCES).map(|index| 20 + index * 13 % 90).collect()
}

/// Sequences of a rank's micro-batch, with all tokens trained except the first.
fn packed(rank: u32, world_size: u32, micro_batch: usize, vocab_size: i64) -> PackedTokens {
    let mine = lengths().into_iter().enumerate().filter(|(index, _)| {
        let turn = index / world_size as usize;
        index % world_size as usize == rank as usize && turn % MICRO_BATCHES == micro_batch
    });
    let (indices, lengths): (Vec<usize>, Vec<usize>) = mine.unzip();
    let token = |index: usize, position: usize| {
        ((position * position * 7 + position * 31 + index * 101) as i64) % vocab_size
    };
    let tokens: Vec<i64> = indices
        .iter()
        .zip(&lengths)
        .flat_map(|(&index, &length)| (0..length).map(move |position| token(index, position)))
        .collect();
    let mask: Vec<u8> = lengths
        .iter()
        .flat_map(|&length| (0..length).map(|position| u8::from(position > 0)))
        .collect();
    PackedTokens::new(&tokens, &mask, &lengths, vocab_size).unwrap()
}

/// Half of the ranks in each pod.
fn in_two_pods(world_size: u32) -> GroupSize {
    GroupSize { world_size, local_world_size: world_size.div_ceil(2) }
}

/// The loss summed over the ranks, and the whole gradient of every block.
fn rank(
    model: &Model,
    blocks: &[Tensor],
    port: u16,
    (rank, world_size): (u32, u32),
    sharding: Sharding,
) -> (f64, Vec<Tensor>) {
    let mesh = Mesh::new(rank, in_two_pods(world_size), sharding);
    let ranks = Ranks::join(("127.0.0.1", port), "127.0.0.1", mesh, Device::Cpu, 0).unwrap();
    let masters = blocks.iter().map(|block| shard_of(block, mesh.shard(), mesh.shards())).collect();
    let numels = model.layout().block_numels();
    let passes = Passes { compute: Kind::Float, sharding, offload: false };
    let mut parameters =
        ShardedParameters::new(std::rc::Rc::clone(&ranks), passes, &numels, masters).unwrap();
    parameters.begin_minibatch(MICRO_BATCHES);
    let trained: usize = lengths().iter().map(|length| length - 1).sum();
    let mut total = 0.0;
    for micro_batch in 0..MICRO_BATCHES {
        let packed = packed(rank, world_size, micro_batch, model.config().vocab_size);
        let mut loss = |chunk: &rljob_learner::model::Chunk| {
            let (gradient_N, value) = sft::loss(
                &chunk.tokens.logprobs_N,
                &chunk.tokens.logprobs_N.full_like(1.0 / trained as f64),
            );
            total += value.value();
            gradient_N.into()
        };
        model.forward_backward(&mut parameters, None, &packed, 0.7, &mut loss).unwrap();
    }
    parameters.finish_gradients().unwrap();
    let whole = |shard: &rljob_learner::fsdp::Shard| {
        let Some(group) = ranks.shard_group() else { return shard.gradient.shallow_clone() };
        let padded = Tensor::empty(
            [shard.gradient.numel() as i64 * i64::from(mesh.shards())],
            (Kind::Float, Device::Cpu),
        );
        group.all_gather(&padded, &shard.gradient).unwrap();
        padded.narrow(0, 0, shard.numel)
    };
    (ranks.sum([total]).unwrap()[0], parameters.shards().iter().map(whole).collect())
}

/// The loss and gradients of `world_size` ranks.
pub fn on_ranks(world_size: u32, sharding: Sharding) -> (f64, Vec<Tensor>) {
    let model = Model::new(config());
    let blocks = random::random(model.layout(), model.config(), 3).unwrap();
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|number| {
                let blocks: Vec<Tensor> = blocks.iter().map(Tensor::shallow_clone).collect();
                let model = &model;
                scope.spawn(move || rank(model, &blocks, port, (number, world_size), sharding))
            })
            .collect();
        ranks.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    })
}

/// Differences of `world_size` ranks from one: of the loss, relative; of gradients, the maximum
/// relative to the maximum of the tensor.
pub fn differences(world_size: u32, sharding: Sharding) -> [f64; 2] {
    let ((loss, gradients), (expected_loss, expected)) =
        (on_ranks(world_size, sharding), on_ranks(1, Sharding::Full));
    let model = Model::new(config());
    let named = |gradients: &[Tensor]| hugging_face::named_tensors(model.layout(), gradients);
    let relative = |(actual, expected): (&Tensor, &Tensor)| {
        ((actual - expected).abs().max() / expected.abs().max()).double_value(&[])
    };
    let worst = named(&gradients)
        .iter()
        .zip(&named(&expected))
        .map(|((_, actual), (_, expected))| relative((actual, expected)))
        .fold(0.0, f64::max);
    [((loss - expected_loss) / expected_loss).abs(), worst]
}
