//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) in one pass over weights, gradient and moments.

use tch::Kind;

pub use crate::operands::{AdamW, Operands};

use crate::KernelError;

/// Updates weights, moments and copy in place.
pub fn update(operands: &Operands<'_>, settings: &AdamW) -> Result<(), KernelError> {
    #[cfg(feature = "cuda")]
    if operands.weights.device().is_cuda() && operands.weights.numel().is_multiple_of(4) {
        return crate::cuda::adamw(operands, settings);
    }
    plain(operands, settings)
}

/// [`update`] in libtorch's operations.
pub fn plain(operands: &Operands<'_>, settings: &AdamW) -> Result<(), KernelError> {
    let [correction1, correction2] = settings.corrections();
    let AdamW { learning_rate, beta1, beta2, weight_decay, epsilon, scale, .. } = *settings;
    let scale = operands.scale.map_or(Ok(scale), |scale| scale.f_double_value(&[]))?;
    if scale.is_nan() {
        return Ok(());
    }
    let mut weights = operands.weights.shallow_clone();
    let mut first = operands.first_moment.shallow_clone();
    let mut second = operands.second_moment.shallow_clone();
    let gradient = operands.gradient.f_mul_scalar(scale)?;
    let _ = weights.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
    let _ = first.f_lerp_(&gradient, 1.0 - beta1)?;
    let _ = second.f_mul_scalar_(beta2)?.f_add_(&(gradient.square() * (1.0 - beta2)))?;
    let root = second.f_sqrt()?.f_div_scalar(correction2.sqrt())?.f_add_scalar(epsilon)?;
    let _ = weights.f_sub_(&(&first / root * (learning_rate / correction1)))?;
    if let Some(copy) = operands.copy {
        copy.shallow_clone().f_copy_(&weights.f_to_kind(Kind::BFloat16)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;
    use crate::test_support::random;

    #[test]
    fn an_update_matches_the_formulas_of_the_paper() {
        let tensors: [Tensor; 4] = std::array::from_fn(|_| random(&[8]).to_kind(Kind::Float).abs());
        let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor).unwrap();
        let before = tensors.each_ref().map(|tensor| values(&tensor.copy()));
        let copy = Tensor::zeros([8], (Kind::BFloat16, tch::Device::Cpu));
        let [weights, gradient, first_moment, second_moment] = &tensors;
        let operands = Operands {
            weights,
            gradient,
            first_moment,
            second_moment,
            copy: Some(&copy),
            scale: None,
        };
        let settings = AdamW {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.01,
            epsilon: 1e-8,
            step: 3,
            scale: 0.5,
        };
        update(&operands, &settings).unwrap();
        for index in 0..8 {
            let [p, g, m, v] = before.each_ref().map(|values| f64::from(values[index]));
            let g = g * 0.5;
            let (m, v) = (0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g);
            let (unbiased_m, unbiased_v) =
                (m / (1.0 - 0.9_f64.powi(3)), v / (1.0 - 0.99_f64.powi(3)));
            let p = p * (1.0 - 0.1 * 0.01) - 0.1 * unbiased_m / (unbiased_v.sqrt() + 1e-8);
            assert!((f64::from(values(weights)[index]) - p).abs() < 1e-5);
        }
        assert_eq!(copy, weights.to_kind(Kind::BFloat16));
        let after = tensors.each_ref().map(values);
        let none = Tensor::from(f32::NAN);
        update(&Operands { scale: Some(&none), ..operands }, &settings).unwrap();
        assert_eq!(tensors.each_ref().map(values), after, "nothing is updated");
        let half = Tensor::from(0.5_f32);
        let again: [Tensor; 4] = tensors.each_ref().map(Tensor::copy);
        let [weights, gradient, first_moment, second_moment] = &again;
        let repeated = Operands { weights, gradient, first_moment, second_moment, ..operands };
        update(&Operands { scale: Some(&half), ..repeated }, &AdamW { scale: 9.0, ..settings })
            .unwrap();
        update(&operands, &settings).unwrap();
        assert_eq!(again, tensors, "the scale of the operands is that of the update");
    }
}
