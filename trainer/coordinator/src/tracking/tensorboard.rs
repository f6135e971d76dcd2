//! TensorBoard event files of a run: `tensorboard/train` and `tensorboard/evaluation`, one scalar
//! per number in `metrics.jsonl` and `evaluations.jsonl`.
//!
//! ```text
//!  file     record, record, …; the first event contains `brain.Event:2`
//!  record   u64 length │ crc of the length │ event │ crc of the event
//!           TFRecord: little-endian, CRC-32C, masked
//!  event    protobuf: wall_time = 1 (double), step = 2 (int64),
//!           file_version = 3 (string) or summary = 5
//!  summary  repeated value = 1: tag = 1 (string), simple_value = 2 (float)
//! ```
//!
//! Each folder has one file, which restarts append to. A step is written once; a record that a
//! crash truncated is removed (docs/decisions/0006).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rljob_crds::names::TENSORBOARD_FILES;
use rljob_protocol::status::{EvaluationMetrics, Phase, StepMetrics};
use serde::Serialize;

use super::TrackerError;
use super::metrics::{MetricsTracker, Position, Records, scalars};

/// The event files of a run directory.
#[derive(Debug)]
pub struct TensorBoard {
    train: EventFile,
    evaluation: EventFile,
}

impl TensorBoard {
    /// Opens the files in a run directory.
    ///
    /// # Errors
    /// A file cannot be created, read or truncated.
    pub fn open(run_directory: &Path) -> io::Result<Self> {
        let [train, evaluation] = TENSORBOARD_FILES.map(|name| run_directory.join(name));
        Ok(Self { train: EventFile::open(&train)?, evaluation: EventFile::open(&evaluation)? })
    }

    /// Appends the scalars of a step, unless they exist. `wall_time` is Unix time in seconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_step(&mut self, metrics: &StepMetrics, wall_time: f64) -> io::Result<()> {
        self.train.add(metrics.step, wall_time, &tags(metrics)?)
    }

    /// Appends the scalars of an evaluation, unless they exist.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_evaluation(
        &mut self,
        metrics: &EvaluationMetrics,
        wall_time: f64,
    ) -> io::Result<()> {
        self.evaluation.add(metrics.step, wall_time, &tags(metrics)?)
    }
}

/// Removes the events after `step` from the files of a stopped run.
///
/// # Errors
/// A file cannot be read or truncated.
pub fn cut_after(run_directory: &Path, step: u32) -> io::Result<()> {
    for path in TENSORBOARD_FILES.map(|name| run_directory.join(name)) {
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            bytes => bytes?,
        };
        let mut rest = bytes.as_slice();
        while let Some((event, after)) = first_record(rest) {
            if step_of(event).is_some_and(|found| found > step) {
                break;
            }
            rest = after;
        }
        let kept = bytes.len().saturating_sub(rest.len());
        OpenOptions::new().write(true).open(&path)?.set_len(kept as u64)?;
    }
    Ok(())
}

impl MetricsTracker for TensorBoard {
    const NAME: &'static str = "TensorBoard";

    async fn position(&mut self) -> Result<Position, TrackerError> {
        let step = self.train.newest.unwrap_or_default();
        Ok(Position { step, evaluation: self.evaluation.newest })
    }

    async fn add(&mut self, records: &Records) -> Result<(), TrackerError> {
        // Some kilobytes, after which nothing is synced.
        let now = wall_time();
        records.steps.iter().try_for_each(|metrics| self.add_step(metrics, now))?;
        Ok(records.evaluations.iter().try_for_each(|metrics| self.add_evaluation(metrics, now))?)
    }

    async fn note(&mut self, _: Phase) -> Result<(), TrackerError> {
        Ok(())
    }
}

/// Unix time in seconds.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Scalars as TensorBoard stores them.
fn tags(record: &impl Serialize) -> io::Result<Vec<(String, f32)>> {
    Ok(scalars(record)?.into_iter().map(|(tag, number)| (tag, number as f32)).collect())
}

/// A file of scalars by step.
#[derive(Debug)]
struct EventFile {
    file: File,
    /// Newest step in the file.
    newest: Option<u32>,
}

impl EventFile {
    fn open(path: &Path) -> io::Result<Self> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (mut rest, mut newest) = (bytes.as_slice(), None);
        while let Some((event, after)) = first_record(rest) {
            newest = newest.max(step_of(event));
            rest = after;
        }
        let complete = bytes.len().saturating_sub(rest.len());
        file.set_len(complete as u64)?;
        file.seek(SeekFrom::End(0))?;
        if complete == 0 {
            file.write_all(&record(&version_event()))?;
        }
        Ok(Self { file, newest })
    }

    fn add(&mut self, step: u32, wall_time: f64, scalars: &[(String, f32)]) -> io::Result<()> {
        if self.newest.is_some_and(|newest| newest >= step) {
            return Ok(());
        }
        self.file.write_all(&record(&scalar_event(step, wall_time, scalars)))?;
        self.newest = Some(step);
        Ok(())
    }
}

/// The record of an event.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), event, &masked_crc(event)].concat()
}

/// The first event and the bytes after its record; `None` if the record is incomplete.
fn first_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (length_crc, rest) = rest.split_first_chunk::<4>()?;
    let (event, rest) =
        rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let (event_crc, rest) = rest.split_first_chunk::<4>()?;
    (*length_crc == masked_crc(length) && *event_crc == masked_crc(event)).then_some((event, rest))
}

/// Masked CRC of TFRecord.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn version_event() -> Vec<u8> {
    let mut event = vec![0x09];
    event.extend(0_f64.to_le_bytes());
    push_bytes(&mut event, 3, b"brain.Event:2");
    event
}

fn scalar_event(step: u32, wall_time: f64, scalars: &[(String, f32)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        push_bytes(&mut value, 1, tag.as_bytes());
        value.push(2 << 3 | 5);
        value.extend(number.to_le_bytes());
        push_bytes(&mut summary, 1, &value);
    }
    let mut event = vec![0x09];
    event.extend(wall_time.to_le_bytes());
    event.push(0x10);
    push_varint(&mut event, u64::from(step));
    push_bytes(&mut event, 5, &summary);
    event
}

/// Step of an event from [`scalar_event`].
fn step_of(event: &[u8]) -> Option<u32> {
    let step = event.get(9..)?.strip_prefix(&[0x10])?;
    let mut value = 0_u64;
    for (byte, shift) in step.iter().zip([0, 7, 14, 21, 28]) {
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).ok();
        }
    }
    None
}

/// A length-delimited field.
fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    push_varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn push_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(path: &Path) -> Vec<Option<u32>> {
        let (bytes, mut steps) = (fs::read(path).unwrap(), Vec::new());
        let mut rest = bytes.as_slice();
        while let Some((event, after)) = first_record(rest) {
            steps.push(step_of(event));
            rest = after;
        }
        assert!(rest.is_empty(), "truncated record");
        steps
    }

    #[test]
    fn steps_are_written_once_over_restarts_and_truncated_records_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = |step| StepMetrics::with_scalars(step, [("reward", 0.5)]);
        let mut board = TensorBoard::open(folder.path()).unwrap();
        for step in [1, 200, 200] {
            board.add_step(&metrics(step), 1.8e9).unwrap();
        }
        let [path, evaluation] = TENSORBOARD_FILES.map(|name| folder.path().join(name));
        let mut truncated = fs::read(&path).unwrap();
        truncated.extend(&record(&scalar_event(201, 1.8e9, &[]))[..20]);
        fs::write(&path, truncated).unwrap();
        let mut board = TensorBoard::open(folder.path()).unwrap();
        for step in [200, 201] {
            board.add_step(&metrics(step), 1.8e9).unwrap();
        }
        assert_eq!(steps(&path), [None, Some(1), Some(200), Some(201)]);
        assert_eq!(steps(&evaluation), [None]);
        cut_after(folder.path(), 200).unwrap();
        assert_eq!(steps(&path), [None, Some(1), Some(200)]);
        cut_after(folder.path(), 0).unwrap();
        assert_eq!([steps(&path), steps(&evaluation)], [[None], [None]]);
    }

    #[test]
    fn the_first_record_equals_tensorflows() {
        // First record of tf.summary with wall time 0.
        let expected =
            b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2";
        assert_eq!(record(&version_event())[..expected.len()], expected[..]);
    }
}
