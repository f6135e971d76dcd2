//! Deadline of a bucket of a broadcast. Pure.
//!
//! A receiver whose sender died may wait for ever, and with it the engine's scheduler. An engine
//! that misses the deadline counts as hung: its process is replaced, and joins another group.

use std::time::Duration;

use rljob_protocol::sglang::UpdateWeightsFromDistributed;

/// Exceeds the 120 s for which the sender waits for the engine.
const WAIT: Duration = Duration::from_secs(150);
/// Slowest transfer in bytes per second: an eighth of 1 Gbit/s.
const SLOWEST: u64 = 16 << 20;
/// Bytes of an element of a type that is not listed.
const LARGEST_ELEMENT: u64 = 8;

/// Time for an engine to receive and load a bucket.
pub fn of_bucket(bucket: &UpdateWeightsFromDistributed) -> Duration {
    let bytes = bucket
        .shapes
        .iter()
        .zip(&bucket.dtypes)
        .map(|(shape, dtype)| elements(shape).saturating_mul(element_bytes(dtype)))
        .fold(0, u64::saturating_add);
    WAIT.saturating_add(Duration::from_secs(bytes.div_ceil(SLOWEST)))
}

fn elements(shape: &[i64]) -> u64 {
    shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).fold(1, u64::saturating_mul)
}

fn element_bytes(dtype: &str) -> u64 {
    match dtype {
        "bfloat16" | "float16" => 2,
        "float32" => 4,
        _ => LARGEST_ELEMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, UpdateWeightsFromDistributed, of_bucket};

    fn seconds(tensors: &[(&str, &[i64])]) -> u64 {
        let bucket = UpdateWeightsFromDistributed {
            names: tensors.iter().map(|_| "w".to_owned()).collect(),
            dtypes: tensors.iter().map(|(dtype, _)| (*dtype).to_owned()).collect(),
            shapes: tensors.iter().map(|(_, shape)| shape.to_vec()).collect(),
            group_name: "g".to_owned(),
            flush_cache: true,
            weight_version: None,
            load_format: None,
        };
        of_bucket(&bucket).as_secs()
    }

    #[test]
    fn a_bucket_has_the_wait_of_the_sender_and_the_time_of_a_slow_network() {
        assert_eq!(seconds(&[]), 150);
        assert_eq!(seconds(&[("bfloat16", &[2])]), 151);
        assert_eq!(seconds(&[("bfloat16", &[1 << 20, 512])]), 150 + 64, "1 GiB");
        assert_eq!(seconds(&[("float32", &[1 << 28]), ("bfloat16", &[1 << 29])]), 150 + 128);
        assert_eq!(seconds(&[("new", &[1 << 21])]), 151);
        let huge = seconds(&[("float32", &[i64::MAX, i64::MAX]), ("float32", &[-1])]);
        assert_eq!(Duration::from_secs(huge).as_secs(), 150 + u64::MAX.div_ceil(16 << 20));
    }
}
