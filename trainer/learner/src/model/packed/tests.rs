//! Tests of packed tokens.

use super::{PackedTokens, SharedPrefix};
use tch::Tensor;

fn vec(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn the_worked_example_has_the_documented_layout() {
    let packed = PackedTokens::new(&[5, 6, 7, 8, 9], &[0, 1, 1, 0, 1], &[3, 2], 10).unwrap();
    assert_eq!(vec(&packed.positions_T), [0, 1, 2, 0, 1]);
    assert_eq!(vec(packed.trained_N()), [1, 2, 4]);
    assert_eq!(vec(&packed.predictors_N), [0, 1, 3]);
    assert_eq!(vec(packed.sequence_N()), [0, 0, 1]);
    assert_eq!(vec(&packed.targets_N), [6, 7, 9]);
    assert_eq!(vec(&packed.last_Q), [2, 4]);
}

#[test]
fn tokens_after_a_shared_prefix_are_predicted_from_its_last_row() {
    let (tokens, mask) = ([5, 6, 7, 5, 6, 8, 9], [0, 0, 1, 0, 0, 1, 1]);
    let shared = SharedPrefix { sequences: 0..2, tokens: 2 };
    let packed = PackedTokens::with_prefixes(&tokens, &mask, &[3, 4], &[shared], 10).unwrap();
    assert_eq!(vec(&packed.tokens_T), [5, 6, 7, 8, 9]);
    assert_eq!(vec(&packed.positions_T), [0, 1, 2, 2, 3]);
    assert_eq!(vec(packed.trained_N()), [2, 5, 6]);
    assert_eq!(vec(&packed.predictors_N), [1, 1, 3]);
    assert_eq!(vec(packed.sequence_N()), [0, 1, 1]);
    assert_eq!(vec(&packed.targets_N), [7, 8, 9]);
    assert_eq!(vec(&packed.last_Q), [2, 4]);
    let x_NH = Tensor::from_slice(&[1.0_f32, 20.0, 300.0]).view([3, 1]);
    let sums = Vec::<f32>::try_from(packed.sum_by_predictor(&x_NH).view([-1])).unwrap();
    assert_eq!(sums, [0.0, 21.0, 0.0, 300.0, 0.0]);
}

#[test]
fn inconsistent_input_is_rejected() {
    let error = |tokens: &[i64], mask: &[u8], lengths: &[usize]| {
        PackedTokens::new(tokens, mask, lengths, 10).unwrap_err().to_string()
    };
    assert_eq!(
        error(&[1, 2], &[0, 1], &[3]),
        "the packed tokens are inconsistent: 2 tokens, 2 mask entries, lengths that add up to 3"
    );
    assert_eq!(
        error(&[1, 10], &[0, 1], &[2]),
        "the packed tokens are inconsistent: token 10 at row 1 is outside the vocabulary of 10"
    );
    let trained_first = "the packed tokens are inconsistent: \
                         the first token of sequence 1 is trained, but no token predicts it";
    assert_eq!(error(&[1, 2, 3], &[0, 1, 1], &[2, 1]), trained_first);
}

#[test]
fn prefixes_that_are_not_shared_are_rejected() {
    let error = |mask: &[u8], sequences, tokens| {
        let prefix = SharedPrefix { sequences, tokens };
        PackedTokens::with_prefixes(&[1, 2, 1, 3], mask, &[2, 2], &[prefix], 10)
            .unwrap_err()
            .to_string()
    };
    let not_shared = |shared, index| {
        format!(
            "the packed tokens are inconsistent: the first {shared} tokens of sequence {index} \
             are not an untrained prefix that sequences 0..2 share"
        )
    };
    assert_eq!(error(&[0; 4], 0..2, 2), not_shared(2, 1));
    assert_eq!(error(&[0; 4], 0..2, 3), not_shared(3, 0));
    assert_eq!(error(&[0, 1, 0, 1], 0..2, 2), not_shared(2, 0));
    assert_eq!(
        error(&[0; 4], 1..3, 1),
        "the packed tokens are inconsistent: \
         sequences 1..3 of a shared prefix are empty, out of order or not there"
    );
}
