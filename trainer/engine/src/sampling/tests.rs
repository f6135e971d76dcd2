//! Tests of distributions and draws.

use super::{Draw, candidates, logprobs_of, sample, uniform};
use tch::Tensor;

fn draw(temperature: f64, position: u64) -> Draw {
    Draw {
        temperature,
        top_p: 1.0,
        top_k: None,
        min_p: 0.0,
        seed: 7,
        position,
        top_logprobs: 0,
        addends: Vec::new(),
    }
}

fn draws(temperature: f64, count: u64) -> Vec<Draw> {
    (0..count).map(|position| draw(temperature, position)).collect()
}

#[test]
fn frequencies_follow_the_softmax_of_logits_over_temperature() {
    let (count, temperature) = (20_000, 0.7);
    let logits_BV = Tensor::from_slice(&[0.0_f32, 1.0, -1.0, 0.5])
        .unsqueeze(0)
        .expand([count, 4], false)
        .contiguous();
    let weights: Vec<f64> =
        [0.0, 1.0, -1.0, 0.5].iter().map(|x: &f64| (x / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut counts = [0.0; 4];
    for sampled in sample(&logits_BV, &draws(temperature, count as u64)).unwrap() {
        let sampled = sampled.unwrap();
        counts[sampled.token as usize] += 1.0;
        assert!((sampled.logprob - (weights[sampled.token as usize] / total).ln()).abs() < 1e-5);
    }
    for (seen, weight) in counts.iter().zip(&weights) {
        assert!((seen / count as f64 - weight / total).abs() < 0.012, "{counts:?}");
    }
}

#[test]
fn a_draw_from_many_blocks_equals_one_from_the_plain_cumulative_sum() {
    let weights: Vec<f32> = (0..1500).map(|index| ((index * 7919) % 101) as f32 / 25.0).collect();
    let logits_BV =
        Tensor::from_slice(&weights).unsqueeze(0).expand([200, 1500], false).contiguous();
    let exps: Vec<f64> = weights.iter().map(|weight| f64::from(*weight).exp()).collect();
    let total: f64 = exps.iter().sum();
    for (position, sampled) in sample(&logits_BV, &draws(1.0, 200)).unwrap().into_iter().enumerate()
    {
        let mut rest = uniform(7, position as u64) * total;
        let expected = exps
            .iter()
            .position(|exp| {
                rest -= exp;
                rest < 0.0
            })
            .unwrap();
        assert_eq!(sampled.unwrap().token, expected as i64);
    }
}

#[test]
fn top_k_top_p_and_min_p_truncate_as_in_sglang() {
    let row = [0.05_f32, 0.4, 0.1, 0.25, 0.2];
    let limits =
        |top_k, top_p, min_p| candidates(&row, &Draw { top_p, top_k, min_p, ..draw(1.0, 0) });
    assert_eq!(limits(Some(2), 1.0, 0.0), [1, 3]);
    assert_eq!(limits(None, 0.5, 0.0), [1, 3]);
    assert_eq!(limits(None, 0.66, 0.0), [1, 3, 4]);
    assert_eq!(limits(None, 1.0, 0.3), [1, 3, 4]);
    assert_eq!(limits(Some(1), 0.9, 0.1), [1]);
    assert_eq!(limits(None, 1e-9, 1.0), [1]);
}

#[test]
fn addends_change_a_rows_logits_and_forbid_tokens() {
    let logits_BV = Tensor::from_slice(&[0.0_f32, 3.0, 1.0, 0.0, 3.0, 1.0]).view([2, 3]);
    let plain = draw(0.0, 0);
    let forbidding =
        Draw { addends: vec![(1, f32::NEG_INFINITY)], top_logprobs: 2, ..draw(0.0, 0) };
    let sampled = sample(&logits_BV, &[plain, forbidding]).unwrap();
    assert_eq!([sampled[0].as_ref().unwrap().token, sampled[1].as_ref().unwrap().token], [1, 2]);
    let top: Vec<i64> = sampled[1].as_ref().unwrap().top.iter().map(|(_, token)| *token).collect();
    assert_eq!(top, [2, 0]);
}

#[test]
fn greedy_sampling_selects_the_most_likely_token_with_its_unscaled_log_probability() {
    let logits_BV = Tensor::from_slice(&[0.0_f32, 2.0, -1.0]).unsqueeze(0);
    let sampled = sample(&logits_BV, &draws(0.0, 1)).unwrap()[0].clone().unwrap();
    let total = 1.0 + 2.0_f64.exp() + (-1.0_f64).exp();
    assert_eq!(sampled.token, 1);
    assert!((sampled.logprob - (2.0 - total.ln())).abs() < 1e-6);
    let scored = logprobs_of(&logits_BV, &[2], 1).unwrap();
    assert!((scored[0].logprob + 1.0 + total.ln()).abs() < 1e-6 && scored[0].top[0].1 == 1);
}

#[test]
fn a_non_finite_row_fails_alone() {
    let logits_BV =
        Tensor::from_slice(&[0.0_f32, f32::NAN, 0.0, 9.0, f32::INFINITY, 0.0]).view([3, 2]);
    let sampled = sample(&logits_BV, &draws(1.0, 3)).unwrap();
    assert_eq!(sampled.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(sampled[1].as_ref().unwrap().token, 1);
}

#[test]
fn a_uniform_number_is_a_function_of_seed_and_position() {
    assert_eq!(uniform(3, 5).to_bits(), uniform(3, 5).to_bits());
    assert!(
        uniform(3, 5).to_bits() != uniform(3, 6).to_bits()
            && uniform(3, 5).to_bits() != uniform(4, 5).to_bits()
    );
}
