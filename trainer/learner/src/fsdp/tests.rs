//! Tests of sharding on CPUs.

use super::shards::{Buffers, PassesLeft};
use super::{FrozenParameters, Passes, ShardedParameters, shard_of};
use crate::model::{Gradient, Parameters};
use crate::ranks::Ranks;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

fn gradient(flat: Tensor) -> Gradient {
    Gradient { flat, has_values: true }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn blocks_share_a_ring_of_buffers_or_have_one_each() {
    let of = |buffers: Buffers| [0, 1, 2, 3, 4].map(|block| buffers.index(block, 5));
    let lengths = |buffers: Buffers| buffers.lengths([9, 4, 5, 6, 1].into_iter());
    assert_eq!((of(Buffers::Ring), lengths(Buffers::Ring)), ([0, 3, 2, 3, 1], vec![9, 1, 5, 6]));
    assert_eq!((of(Buffers::Own), lengths(Buffers::Own)), ([0, 1, 2, 3, 4], vec![9, 4, 5, 6, 1]));
}

#[test]
fn the_last_pass_of_a_minibatch_is_known_and_so_is_each_unannounced_one() {
    let mut passes = PassesLeft::one();
    let mut last = |begin: Option<usize>| {
        if let Some(number) = begin {
            passes.begin(number);
        }
        (passes.is_last(), passes.end())
    };
    let found = [Some(2), None, None, Some(1), Some(0), None].map(&mut last);
    assert_eq!(found.map(|(is_last, _)| is_last), [false, true, true, true, true, true]);
    assert!(found.into_iter().all(|(is_last, was_last)| is_last == was_last));
}

#[test]
fn shards_are_consecutive_and_padded_with_zeros() {
    let whole = Tensor::from_slice(&[1f32, 2., 3., 4.]);
    let shards: Vec<_> = (0..3).map(|rank| floats(&shard_of(&whole, rank, 3))).collect();
    assert_eq!(shards, [[1., 2.], [3., 4.], [0., 0.]]);
}

#[test]
fn two_ranks_gather_the_whole_block_and_sum_gradients() {
    // Two threads share an address: ranks of a process group differ in their number only.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let rank = move |rank: u32| {
        let ranks =
            Ranks::join(("127.0.0.1", port), "127.0.0.1", (rank, 2), Device::Cpu, 0).unwrap();
        let whole = Tensor::from_slice(&[1f32, 2., 3.]);
        let mut parameters = ShardedParameters::new(
            Rc::clone(&ranks),
            Passes::full(Kind::Float),
            &[3],
            vec![shard_of(&whole, rank, 2)],
        )
        .unwrap();
        parameters.add_gradient(0, gradient(&whole * f64::from(rank + 1))).unwrap();
        parameters.add_gradient(0, gradient(whole.shallow_clone())).unwrap();
        let mut frozen =
            FrozenParameters::new(Rc::clone(&ranks), Kind::Float, [Ok(&whole * 2.0)]).unwrap();
        assert_eq!(floats(&frozen.weights(0, None).unwrap()), [2., 4., 6.]);
        (floats(&parameters.weights(0, None).unwrap()), floats(&parameters.shards()[0].gradient))
    };
    let (zero, one) = std::thread::scope(|scope| {
        let (zero, one) = (scope.spawn(move || rank(0)), scope.spawn(move || rank(1)));
        (zero.join().unwrap(), one.join().unwrap())
    });
    assert_eq!(zero, (vec![1., 2., 3.], vec![5., 10.]));
    assert_eq!(one, (vec![1., 2., 3.], vec![15., 0.]));
}

#[test]
fn a_frozen_model_rejects_gradients() {
    let mut frozen =
        FrozenParameters::new(Ranks::alone(), Kind::Float, [Ok(Tensor::from_slice(&[1f32]))])
            .unwrap();
    let error = frozen.gradient(0).unwrap_err();
    assert_eq!(
        crate::error_line(&error),
        "failed to provide the gradient of block 0: the model is frozen"
    );
}

#[test]
fn the_error_of_a_missing_block_names_it() {
    let mut parameters =
        ShardedParameters::new(Ranks::alone(), Passes::full(Kind::Float), &[], vec![]).unwrap();
    assert_eq!(
        parameters.weights(4, None).unwrap_err().to_string(),
        "failed to gather weights of block 4"
    );
}
