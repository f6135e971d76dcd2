//! Tests of the optimizer.

use super::{Optimizer, Update, on_device};
use crate::checkpoint::OptimizerProgress;
use crate::fsdp::{Passes, ShardedParameters};
use crate::model::{Gradient, Parameters};
use crate::ranks::Ranks;
use rljob_crds::algorithm::OptimizerSpec;
use tch::{Kind, Tensor};

fn setup() -> (ShardedParameters, Optimizer) {
    let parameters = ShardedParameters::new(
        Ranks::alone(),
        Passes::full(Kind::Float),
        &[2],
        vec![Tensor::from_slice(&[1f32, -1.])],
    )
    .unwrap();
    let spec =
        OptimizerSpec { weight_decay: 0.0, gradient_clipping: 1.0, ..OptimizerSpec::default() };
    let optimizer = Optimizer::new(Ranks::alone(), spec, &parameters).unwrap();
    (parameters, optimizer)
}

fn add(parameters: &mut ShardedParameters, values: [f32; 2]) {
    let flat = Tensor::from_slice(&values);
    parameters.add_gradient(0, Gradient { flat, has_values: true }).unwrap();
}

fn update(optimizer: &mut Optimizer, parameters: &mut ShardedParameters, loss: f64) -> Update {
    let pending = optimizer.begin_update(parameters, 0.5, &loss.into()).unwrap();
    optimizer.end_update(&pending)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn the_norm_is_that_before_clipping_and_the_gradient_is_reset() {
    let (mut parameters, mut optimizer) = setup();
    add(&mut parameters, [3.0, 4.0]);
    let made = update(&mut optimizer, &mut parameters, 1.0);
    assert_eq!(made, Update { loss: 1.0, gradient_norm: 5.0, skipped: false });
    // The first AdamW update moves each element by the learning rate; the first moment is a
    // tenth of the clipped gradient.
    let close = |tensor: &Tensor, expected: [f32; 2]| {
        assert!(
            tensor.allclose(&Tensor::from_slice(&expected), 1e-6, 0.0, false),
            "{:?}",
            floats(tensor)
        );
    };
    close(&parameters.shards()[0].master, [0.5, -1.5]);
    close(&optimizer.moments()[0][0], [0.06, 0.08]);
    assert_eq!(floats(&parameters.shards()[0].gradient), [0.0, 0.0]);
}

#[test]
fn squares_are_summed_in_parts() {
    let flat = Tensor::from_slice(&[1f32, 2., 3., 4., 5.]);
    let sums = [1, 2, 5, 9].map(|part| on_device::squares(&flat, part).unwrap().double_value(&[]));
    assert!(sums.iter().all(|sum| (sum - 55.0).abs() < 1e-5), "{sums:?}");
}

#[test]
fn the_scale_of_a_device_has_the_bits_of_that_of_the_host() {
    let scale = |loss: f64, squares: f64, clip| {
        let [loss, squares] = [loss, squares].map(Tensor::from);
        f32::try_from(&on_device::scale(&loss, &squares, clip).unwrap()).unwrap()
    };
    for squares in [0.0, 1e-14, 0.3, 1.0, 7.5, 1e30] {
        for clip in [0.1, 1.0, 3.0] {
            let expected = (clip / (f64::sqrt(squares) + 1e-6)).min(1.0) as f32;
            assert_eq!(
                scale(0.5, squares, clip).to_bits(),
                expected.to_bits(),
                "{squares}, {clip}"
            );
        }
        assert_eq!(scale(0.5, squares, 0.0).to_bits(), 1.0_f32.to_bits());
    }
    for (loss, squares) in
        [(f64::NAN, 1.0), (f64::INFINITY, 1.0), (1.0, f64::NAN), (1.0, f64::INFINITY)]
    {
        assert!(scale(loss, squares, 1.0).is_nan(), "{loss}, {squares}");
    }
}

#[test]
fn updates_with_non_finite_numbers_are_skipped_and_counted_until_one_succeeds() {
    let (mut parameters, mut optimizer) = setup();
    add(&mut parameters, [f32::NAN, 0.0]);
    assert!(update(&mut optimizer, &mut parameters, 1.0).skipped);
    add(&mut parameters, [1.0, 0.0]);
    assert!(update(&mut optimizer, &mut parameters, f64::INFINITY).skipped);
    assert_eq!(floats(&parameters.shards()[0].master), [1.0, -1.0]);
    assert_eq!(optimizer.progress(), OptimizerProgress { updates: 0, skipped_in_a_row: 2 });
    add(&mut parameters, [1.0, 0.0]);
    assert!(!update(&mut optimizer, &mut parameters, 1.0).skipped);
    assert_eq!(optimizer.progress(), OptimizerProgress { updates: 1, skipped_in_a_row: 0 });
}
