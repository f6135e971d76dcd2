//! Steps in TensorBoard's event files.

use std::fs;
use std::path::Path;

use rljob_crds::names::TENSORBOARD_FILES;

/// Steps of the training and of the evaluations in a run directory.
pub(super) fn steps(directory: &Path) -> [Vec<u64>; 2] {
    TENSORBOARD_FILES.map(|file| event_steps(&fs::read(directory.join(file)).unwrap()))
}

/// Steps of the events in TFRecords: length and checksum, event, checksum. An event starts with its
/// time and, except the first one, its step, which has one byte if it is below 128.
fn event_steps(bytes: &[u8]) -> Vec<u64> {
    let (mut rest, mut events) = (bytes, Vec::new());
    while let Some((length, record)) = rest.split_first_chunk::<8>() {
        let (event, after) = record[4..].split_at(u64::from_le_bytes(*length) as usize);
        events.push(event);
        rest = &after[4..];
    }
    events[1..].iter().map(|event| u64::from(event[10])).collect()
}
