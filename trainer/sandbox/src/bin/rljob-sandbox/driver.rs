//! Connection to the driver of a program inside the sandbox. Nothing that it sends is trusted:
//! lengths and waits are limited.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Instant;

use anyhow::Context;
use rljob_sandbox::children::end_children;
use rljob_sandbox::plan::Plan;

use crate::memory::MemoryLimit;

/// Longest length of a message, in digits, with its end.
const LENGTH_DIGITS: u64 = 20;

/// A running driver. Dropping it kills all processes of the sandbox.
pub struct Driver {
    /// Of the program: the driver is spared.
    pub memory: MemoryLimit,
    outgoing: Sender<Vec<u8>>,
    incoming: Receiver<Vec<u8>>,
}

/// Why there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The driver ended.
    Ended,
    /// The deadline passed.
    Late,
}

impl Driver {
    /// Starts a driver by a command of the plan. Its messages have at most `longest` bytes.
    pub fn start(mut command: Command, plan: &Plan, longest: usize) -> anyhow::Result<Self> {
        // It ends with the others in `drop`.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start a sandbox")?;
        let (input, output) =
            child.stdin.take().zip(child.stdout.take()).context("a pipe is missing")?;
        let (outgoing, messages) = channel();
        std::thread::spawn(move || write_all(input, &messages));
        let (sender, incoming) = sync_channel(1);
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            while let Some(message) = read(&mut output, longest) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let memory = MemoryLimit::start(plan, 1);
        Ok(Self { memory, outgoing, incoming })
    }

    /// Sends a message. If the driver has ended, `receive` says so.
    pub fn send(&self, message: impl Into<Vec<u8>>) {
        let _ = self.outgoing.send(message.into());
    }

    pub fn receive(&self, deadline: Instant) -> Result<Vec<u8>, Silence> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.incoming.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        end_children();
    }
}

fn write_all(mut input: ChildStdin, messages: &Receiver<Vec<u8>>) {
    for message in messages {
        let header = format!("{}\n", message.len());
        let written = input.write_all(header.as_bytes()).and_then(|()| input.write_all(&message));
        if written.is_err() {
            return;
        }
    }
}

/// The next message; `None` at the end or if it is malformed.
fn read(output: &mut BufReader<ChildStdout>, longest: usize) -> Option<Vec<u8>> {
    let mut header = Vec::new();
    output.take(LENGTH_DIGITS).read_until(b'\n', &mut header).ok()?;
    let length: usize = std::str::from_utf8(&header).ok()?.strip_suffix('\n')?.parse().ok()?;
    let mut message = Vec::new();
    let is_read =
        length <= longest && output.take(length as u64).read_to_end(&mut message).ok()? == length;
    is_read.then_some(message)
}
