//! Random weights: a pure function of seed, tensor name and shape, the same in every process.

use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest as _, Sha256};
use tch::{Kind, Tensor};

use super::layout::TensorSpec;
use super::{Layout, ModelConfig, ModelError, ModelLayout};

/// Flat fp32 weights of every block: norms 1, biases 0, other weights normally distributed with the
/// configured standard deviation.
///
/// # Errors
/// libtorch cannot allocate a tensor.
pub fn random(
    layout: &ModelLayout,
    config: &ModelConfig,
    seed: u64,
) -> Result<Vec<Tensor>, ModelError> {
    blocks(layout, config, seed).collect()
}

/// As [`random`], one block at a time.
pub fn blocks(
    layout: &ModelLayout,
    config: &ModelConfig,
    seed: u64,
) -> impl Iterator<Item = Result<Tensor, ModelError>> + use<> {
    let (blocks, deviation) = (layout.blocks().to_vec(), config.initializer_range);
    blocks.into_iter().map(move |block| random_block(&block, deviation, seed))
}

fn random_block(block: &Layout, deviation: f64, seed: u64) -> Result<Tensor, ModelError> {
    let tensors = block
        .tensors()
        .iter()
        .map(|spec| random_tensor(spec, deviation, seed))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Tensor::f_cat(&tensors, 0)?)
}

fn random_tensor(spec: &TensorSpec, deviation: f64, seed: u64) -> Result<Tensor, ModelError> {
    if spec.shape.len() == 1 {
        let value = if spec.name.strip_suffix(".bias").is_some() { 0.0 } else { 1.0 };
        return Ok(Tensor::f_full([spec.numel()], value, (Kind::Float, tch::Device::Cpu))?);
    }
    let mut generator = generator(spec, seed);
    let pairs = (spec.numel() + 1) / 2;
    let radius = (uniform(&mut generator, pairs)?.log() * -2.0).sqrt();
    let angle = uniform(&mut generator, pairs)? * std::f64::consts::TAU;
    // Box–Muller transform (1958).
    let normal = Tensor::f_cat(&[&radius * angle.cos(), &radius * angle.sin()], 0)?;
    Ok((normal.narrow(0, 0, spec.numel()) * deviation).to_kind(Kind::Float))
}

/// Flat fp32 values of a matrix as `kaiming_uniform_(a = √5)` of PyTorch distributes them: uniform
/// between ±1 ÷ √columns.
///
/// # Errors
/// libtorch cannot allocate the tensor.
pub fn kaiming_uniform(spec: &TensorSpec, seed: u64) -> Result<Tensor, ModelError> {
    let columns = spec.shape.last().copied().unwrap_or(1).max(1) as f64;
    let uniform = uniform(&mut generator(spec, seed), spec.numel())?;
    Ok(((uniform * 2.0 - 1.0) / columns.sqrt()).to_kind(Kind::Float))
}

/// The generator of a tensor.
fn generator(spec: &TensorSpec, seed: u64) -> ChaCha8Rng {
    let key = Sha256::new()
        .chain_update(seed.to_le_bytes())
        .chain_update(spec.name.as_bytes())
        .finalize();
    ChaCha8Rng::from_seed(key.into())
}

/// Uniform in (0, 1), 31 bits each, as f64.
fn uniform(generator: &mut ChaCha8Rng, count: i64) -> Result<Tensor, ModelError> {
    let mut bytes = vec![0; 4 * count as usize];
    generator.fill_bytes(&mut bytes);
    let bits =
        Tensor::f_from_data_size(&bytes, &[count], Kind::Int)?.bitwise_and(i64::from(i32::MAX));
    Ok((bits.to_kind(Kind::Double) + 0.5) / f64::from(1_u32 << 31))
}

#[cfg(test)]
mod tests {
    use super::random_tensor;
    use crate::model::layout::TensorSpec;

    #[test]
    fn weights_are_normal_and_depend_on_seed_and_name_only() {
        let vector = |name: &str| {
            random_tensor(&TensorSpec { name: name.to_owned(), shape: vec![2], offset: 0 }, 0.02, 1)
                .unwrap()
        };
        assert_eq!(Vec::<f32>::try_from(vector("k_norm.weight")).unwrap(), [1.0, 1.0]);
        assert_eq!(Vec::<f32>::try_from(vector("k_proj.bias")).unwrap(), [0.0, 0.0]);
        let make = |name: &str, seed| {
            random_tensor(
                &TensorSpec { name: name.to_owned(), shape: vec![301, 301], offset: 0 },
                0.02,
                seed,
            )
            .unwrap()
        };
        let weights = make("a", 1);
        assert_eq!(weights, make("a", 1));
        assert_ne!(weights, make("b", 1));
        assert_ne!(weights, make("a", 2));
        let number = |tensor: tch::Tensor| f64::try_from(tensor).unwrap();
        assert!(number(weights.mean(tch::Kind::Double)).abs() < 3e-4);
        assert!((number(weights.std(true)) - 0.02).abs() < 3e-4);
    }
}
