//! Linear layer for few rows: the same results as libtorch, and bits of a row that do not depend on
//! other rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rljob_collective::{linear, linear_by_rows};
use tch::{Device, Kind, Tensor};

fn random(shape: [i64; 2], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

/// Maximum difference from the product in fp64, relative to its maximum.
fn error(x: &Tensor, weight: &Tensor) -> f64 {
    let exact = x.to_kind(Kind::Double).matmul(&weight.to_kind(Kind::Double).tr());
    let difference = (linear(x, weight).unwrap().to_kind(Kind::Double) - &exact).abs().max();
    (difference / exact.abs().max()).double_value(&[])
}

#[test]
fn products_of_any_shape_are_exact_to_rounding() {
    for (rows, inputs, outputs) in
        [(1, 64, 96), (8, 576, 961), (7, 33, 5), (16, 100, 50), (31, 1536, 576), (40, 64, 64)]
    {
        let fp32 =
            error(&random([rows, inputs], Kind::Float), &random([outputs, inputs], Kind::Float));
        let bf16 = error(
            &random([rows, inputs], Kind::BFloat16),
            &random([outputs, inputs], Kind::BFloat16),
        );
        assert!(fp32 < 1e-6 && bf16 < 5e-3, "{rows} rows, {inputs} to {outputs}: {fp32}, {bf16}");
    }
}

#[test]
fn the_bits_of_a_row_do_not_depend_on_other_rows() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let (x, weight) = (random([19, 100], kind), random([77, 100], kind));
        let together = linear(&x, &weight).unwrap();
        for row in 0..19 {
            assert_eq!(linear(&x.narrow(0, row, 1), &weight).unwrap(), together.narrow(0, row, 1));
        }
        let many = Tensor::cat(&[&x, &x, &x, &x], 0);
        assert_eq!(
            linear_by_rows(&many, &weight).unwrap(),
            Tensor::cat(&[&together, &together, &together, &together], 0)
        );
    }
}

#[test]
fn views_that_are_not_contiguous_are_supported() {
    let (wide, weight) = (random([8, 64], Kind::Float), random([16, 32], Kind::Float));
    let part = wide.narrow(1, 16, 32);
    assert_eq!(linear(&part, &weight).unwrap(), linear(&part.contiguous(), &weight).unwrap());
}

#[test]
fn mismatched_shapes_are_rejected() {
    let message =
        linear(&random([2, 3], Kind::Float), &random([4, 5], Kind::Float)).unwrap_err().to_string();
    assert!(message.contains("linear layer") && message.contains("[2, 3] by [4, 5]"), "{message}");
}
