//! The plan against measured memory, the choice of activations, and messages.

use rljob_crds::algorithm::{Activations, Sharding};
use rljob_crds::lora::LoraSpec;
use rljob_kernels::device::Capacity;

use super::{check, check_free, choose, choose_sharding, usable, warning};
use crate::memory::plan::{Critic, MemoryPlan, Offload, Settings};
use crate::mesh::GroupSize;
use crate::model::lora::Lora;
use crate::model::{Head, Model, ModelConfig, ModelLayout, Recomputed};

const GIB: f64 = (1_u64 << 30) as f64;
/// An H200 and an H100.
const H200: u64 = 139 << 30;
const H100: u64 = 79 << 30;
/// All layers of [`config`].
const ALL: Recomputed = Recomputed { layers: 28, selective: 0 };

/// Qwen2.5 of 1.5 billion parameters, or of 7.
fn config(large: bool) -> ModelConfig {
    let [hidden_size, intermediate_size, heads, keys, vocab_size] =
        if large { [3584, 18_944, 28, 4, 152_064] } else { [1536, 8960, 12, 2, 151_936] };
    ModelConfig {
        vocab_size,
        hidden_size,
        intermediate_size,
        num_hidden_layers: 28,
        num_attention_heads: heads,
        num_key_value_heads: keys,
        head_dim: 128,
        qkv_bias: true,
        qk_norm: false,
        rope_theta: 1e6,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: !large,
        max_position_embeddings: 32_768,
        eos_token_ids: vec![2],
        bos_token_id: None,
        initializer_range: 0.02,
    }
}

/// Calls `test` with settings for BF16 and micro-batches of 16,384 tokens.
fn with<T>(large: bool, world_size: u32, test: impl FnOnce(Settings<'_>) -> T) -> T {
    let config = config(large);
    let layout = ModelLayout::new(&config);
    test(Settings {
        config: &config,
        layout: &layout,
        size: GroupSize::one_pod(world_size),
        element: 2,
        trains: true,
        sharding: Sharding::Full,
        offload: Offload::default(),
        critic: None,
        adapters: None,
        dropout: false,
        frozen: 0,
        teacher: None,
        needs_reference: false,
        tokens: 16_384,
    })
}

#[test]
fn the_total_is_within_two_percent_of_the_peak_measured_on_an_h200() {
    // docs/training.md: 8 sequences of 2,048 tokens with all activations, without publication.
    let plan = with(false, 1, |settings| MemoryPlan::new(&settings, Recomputed::default()));
    let planned = (plan.total() - plan.publication) as f64 / GIB;
    assert!((planned / 51.4 - 1.0).abs() < 0.02, "{planned}");
}

#[test]
fn the_parts_of_a_model_of_7_billion_parameters_on_two_gpus_are_known() {
    with(true, 2, |settings| {
        let plan = MemoryPlan::new(&settings, ALL);
        let half = settings.layout.numel().unsigned_abs() / 2;
        let table = 152_064 * 3584;
        let layer = settings.layout.blocks()[1].numel().unsigned_abs();
        let last = table + 3584;
        assert_eq!(
            (plan.weights, plan.gradients, plan.optimizer, plan.reference, plan.publication),
            (4 * half, 4 * half, 8 * half, 0, 2 * 2 * half)
        );
        assert_eq!(plan.buffers, 6 * (table + last + 2 * layer) + 4 * last / 2);
        assert_eq!(plan.activations, 16_384 * 28 * 2 * 3584);
        let held = Settings { sharding: Sharding::Gradients, frozen: 1, ..settings };
        let plan = MemoryPlan::new(&held, ALL);
        assert_eq!(plan.buffers, 6 * 2 * half + 4 * last / 2);
        assert_eq!(plan.reference, 2 * (half + table + last + 2 * layer));
    });
}

#[test]
fn a_hybrid_learner_has_the_shards_of_the_learners_of_one_pod() {
    with(true, 8, |settings| {
        let size = GroupSize { world_size: 8, local_world_size: 4 };
        let hybrid = Settings { size, sharding: Sharding::Hybrid, frozen: 1, ..settings };
        let of_pod = Settings { size: GroupSize::one_pod(4), frozen: 1, ..settings };
        assert_eq!(MemoryPlan::new(&hybrid, ALL), MemoryPlan::new(&of_pod, ALL));
    });
}

#[test]
fn a_hybrid_model_that_does_not_fit_needs_full_sharding_or_more_gpus_in_each_pod() {
    with(true, 4, |settings| {
        let size = GroupSize { world_size: 4, local_world_size: 2 };
        let hybrid = Settings { size, sharding: Sharding::Hybrid, ..settings };
        let message = check(&hybrid, 75 << 30).unwrap_err().to_string();
        assert_eq!(
            message.rsplit_once("): ").unwrap().1,
            "set training.sharding to Full, or set optimizer.offload to true, or use at least 3 \
             GPUs in each trainer pod (now 2)"
        );
    });
}

#[test]
fn a_teacher_of_the_shape_of_the_policy_needs_the_memory_of_a_reference() {
    with(true, 2, |settings| {
        let reference = MemoryPlan::new(&Settings { frozen: 1, ..settings }, ALL);
        let teacher = Settings { teacher: Some(settings.layout), ..settings };
        let plan = MemoryPlan::new(&teacher, ALL);
        let (reference, teacher) = (0, reference.reference);
        assert_eq!(plan, MemoryPlan { reference, teacher, ..plan });
        assert!(plan.to_string().contains(" + the teacher "), "{plan}");
    });
}

#[test]
fn a_learner_of_a_group_needs_the_frozen_model_and_a_layer_of_a_forward_pass() {
    with(true, 2, |settings| {
        let group = Settings { trains: false, frozen: 1, ..settings };
        let plan = MemoryPlan::new(&group, Recomputed::default());
        let reference =
            MemoryPlan::new(&Settings { frozen: 1, ..settings }, Recomputed::default()).reference;
        // Per token in BF16: kept by a layer, and the output of SwiGLU and of the layer.
        let kept = 2 * (4 * 3584 + 36 * 128 + 28 * 128 + 2 * 18_944) + 4 * 30;
        let work = 16_384 * (kept + 2 * (18_944 + 3584));
        assert_eq!(plan, MemoryPlan { reference, work, ..MemoryPlan::default() });
        assert_eq!(
            plan.to_string(),
            "12.5 GiB = the reference model 10.0 GiB + temporaries 2.5 GiB"
        );
        let message = check(&group, 10 << 30).unwrap_err().to_string();
        assert_eq!(
            message.rsplit_once("): ").unwrap().1,
            "use at least 3 GPUs (now 2), or set klCoefficient to 0, which needs no reference"
        );
        let message = warning(&group, &plan, 12 << 30).unwrap();
        let remedies = message.rsplit_once(": ").unwrap().1;
        assert!(remedies.ends_with(" or use more GPUs"), "{remedies}");
        assert!(!remedies.contains("Recompute"), "{remedies}");
    });
}

#[test]
fn a_critic_needs_the_weights_gradients_and_optimizer_states_of_its_parameters() {
    with(true, 2, |settings| {
        let layout = ModelLayout::with_head(settings.config, Head::Scalar);
        let alone = MemoryPlan::new(&settings, ALL);
        let critic = Critic { layout: &layout, offload: Offload::default() };
        let plan = MemoryPlan::new(&Settings { critic: Some(critic), ..settings }, ALL);
        let share = layout.numel().unsigned_abs() / 2;
        let (table, layer) = (152_064 * 3584, layout.blocks()[1].numel().unsigned_abs());
        let buffers = 6 * (table + 2 * 3584 + 2 * layer) + 4 * table / 2;
        assert_eq!(plan.critic, 16 * share + buffers);
        assert_eq!(plan, MemoryPlan { critic: plan.critic, ..alone });
        assert_eq!(plan.fixed(), alone.fixed() + plan.critic);
    });
}

#[test]
fn a_value_head_needs_the_states_of_its_weights() {
    with(true, 2, |settings| {
        let layout = ModelLayout::with_head(settings.config, Head::Value);
        let critic = Critic { layout: &layout, offload: Offload::default() };
        let plan = MemoryPlan::new(&Settings { critic: Some(critic), ..settings }, ALL);
        // The states of half of 3,584 weights, whole ones with their gradient, and the largest
        // shard.
        assert_eq!(plan.critic, 16 * 1792 + 6 * 3584 + 4 * 1792);
    });
}

#[test]
fn adapters_need_their_states_and_a_base_in_bf16_instead_of_those_of_all_weights() {
    with(true, 1, |settings| {
        let model = Model::new(settings.config.clone());
        let lora = Lora::new(&model, &LoraSpec::default());
        let adapters = lora.layout();
        let plan = MemoryPlan::new(&Settings { adapters: Some(adapters), ..settings }, ALL);
        // Rank 16 for 28 layers of Qwen2.5 7B, all linear layers.
        let numel = 40_370_176;
        assert_eq!(adapters.numel().unsigned_abs(), numel);
        assert_eq!(
            (plan.weights, plan.gradients, plan.optimizer),
            (4 * numel, 4 * numel, 8 * numel)
        );
        let table = 152_064 * 3584 + 3584;
        assert_eq!(plan.base, 2 * settings.layout.numel().unsigned_abs() + 6 * table);
        assert_eq!(plan.reference, 0);
        let dropout = Settings { adapters: Some(adapters), dropout: true, ..settings };
        // The masks of 18,944 inputs of the last product, for each token: two numbers of 4 bytes,
        // factors and product in BF16.
        let more = MemoryPlan::new(&dropout, ALL).work - plan.work;
        assert_eq!(more, settings.tokens * (2 * 4 + 2 * 2) * 18_944);
        assert!(plan.fixed() < usable(H100), "{plan}");
        assert!(MemoryPlan::new(&settings, ALL).fixed() > usable(H100));
    });
}

#[test]
fn as_many_layers_keep_their_activations_as_fit_unless_the_spec_decides() {
    let recomputed = |large, world_size, activations, free| {
        with(large, world_size, |settings| {
            let Recomputed { layers, selective } = choose(&settings, activations, free).recomputed;
            (layers, selective)
        })
    };
    let free = [H100, 48 << 30, 40 << 30, 1 << 30];
    let expected = [(0, 0), (9, 19), (20, 8), (28, 0)];
    assert_eq!(free.map(|free| recomputed(false, 1, None, Some(free))), expected);
    assert_eq!(recomputed(true, 2, None, Some(H200)), (0, 23));
    assert_eq!(recomputed(true, 2, None, None), (0, 0), "on a CPU");
    assert_eq!(recomputed(false, 1, Some(Activations::Keep), Some(1 << 30)), (0, 0));
    assert_eq!(recomputed(false, 1, Some(Activations::Selective), Some(1 << 30)), (0, 28));
    assert_eq!(recomputed(false, 1, Some(Activations::Recompute), Some(H200)), (28, 0));
}

#[test]
fn a_gpu_that_other_processes_use_is_named_before_anything_is_loaded() {
    let plan = with(false, 1, |settings| choose(&settings, Some(Activations::Recompute), None));
    let of = |free| check_free(&plan, Capacity { free, total: H100 });
    assert_eq!(of(plan.fixed()), Ok(()));
    assert_eq!(
        of(12 << 30).unwrap_err().to_string(),
        "12.0 GiB of 79.0 GiB are free on the GPU, and 28.8 GiB are needed without activations: \
         end the processes that use the rest, which nvidia-smi lists"
    );
}

#[test]
fn blocks_stay_gathered_where_the_memory_allows_it_beside_all_activations() {
    let chosen = |large, world_size, activations, free| {
        with(large, world_size, |settings| choose_sharding(&settings, activations, free))
    };
    assert_eq!(chosen(false, 2, None, Some(H100)), Sharding::Gradients);
    assert_eq!(chosen(false, 2, None, Some(40 << 30)), Sharding::Full);
    assert_eq!(chosen(false, 2, Some(Activations::Recompute), Some(40 << 30)), Sharding::Gradients);
    assert_eq!(chosen(false, 1, None, Some(H100)), Sharding::Full, "nothing is divided");
    assert_eq!(chosen(false, 2, None, None), Sharding::Full, "on a CPU");
}

#[test]
fn a_model_that_no_batch_would_fit_beside_is_rejected_with_what_to_change() {
    with(true, 1, |settings| {
        assert_eq!(
            check(&settings, H200).unwrap_err().to_string(),
            "the model does not fit: of 139.0 GiB on the GPU, 130.7 GiB can be used, and 141.9 GiB \
             are needed without activations (optimizer states 56.7 GiB, weights 42.6 GiB, \
             gradients 28.4 GiB, the copy for engines and exports 14.2 GiB): set \
             optimizer.offload to true, or use at least 2 GPUs (now 1)"
        );
        let moments = Offload { moments: true, weights: false };
        check(&Settings { offload: moments, ..settings }, H200).unwrap();
        let message = check(&settings, H100).unwrap_err().to_string();
        assert_eq!(
            message.rsplit_once("): ").unwrap().1,
            "set optimizer.offload and optimizer.offloadWeights to true, or use at least 3 GPUs \
             (now 1)"
        );
        let all = Offload { moments: true, weights: true };
        check(&Settings { offload: all, ..settings }, H100).unwrap();
        // A copy in BF16, and gradients.
        let plan = MemoryPlan::new(&Settings { offload: all, ..settings }, ALL);
        let numel = settings.layout.numel().unsigned_abs();
        assert_eq!((plan.weights, plan.gradients, plan.optimizer), (2 * numel, 4 * numel, 0));
    });
    with(true, 2, |settings| {
        let held = Settings { sharding: Sharding::Gradients, frozen: 1, ..settings };
        let message = check(&held, H100).unwrap_err().to_string();
        let remedies = message.rsplit_once("): ").unwrap().1;
        assert_eq!(
            remedies,
            "set optimizer.offload to true, or use at least 3 GPUs (now 2), or set klCoefficient \
             to 0, which needs no reference"
        );
        check(&settings, H200).unwrap();
    });
}

#[test]
fn micro_batches_that_may_not_fit_are_a_warning_with_a_size_that_does() {
    const FREE: u64 = 34 << 30;
    with(false, 1, |settings| {
        let plan = choose(&settings, None, Some(FREE));
        let message = warning(&settings, &plan, FREE).unwrap();
        let number = message.split_once("MicroBatch to ").unwrap().1.split(' ').next().unwrap();
        let tokens: u64 = number.parse().unwrap();
        let total =
            |tokens| MemoryPlan::new(&Settings { tokens, ..settings }, plan.recomputed).total();
        assert!(total(tokens) <= usable(FREE) && total(tokens + 256) > usable(FREE), "{message}");
        assert_eq!(
            message.replace(number, "T"),
            "micro-batches of 16384 tokens may not fit: they need 1.3 GiB of activations and 2.4 \
             GiB of temporaries beside 28.8 GiB for everything else, and 32.0 GiB can be used: \
             lower training.maxTokensPerMicroBatch to T or use more GPUs"
        );
        assert!(warning(&settings, &plan, H100).is_none());
    });
    with(true, 2, |settings| {
        let plan = choose(&settings, None, Some(H100));
        let message = warning(&settings, &plan, H100).unwrap();
        assert_eq!(message.rsplit_once(": ").unwrap().1, "use more GPUs");
    });
}

#[test]
fn the_plan_is_one_line() {
    let line =
        with(false, 1, |settings| MemoryPlan::new(&settings, Recomputed::default()).to_string());
    assert_eq!(
        line,
        "53.9 GiB = weights 8.6 GiB + gradients 5.8 GiB + optimizer states 11.5 GiB + the copy for \
         engines and exports 2.9 GiB + activations 23.6 GiB + temporaries 1.5 GiB; 0 layers are \
         computed again"
    );
}
