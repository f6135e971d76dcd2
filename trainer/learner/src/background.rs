//! Background tasks of the training loop: at most one at a time, on a thread. Its error is returned
//! by the next call.

use std::thread::JoinHandle;

/// A thread that could not be started or panicked.
#[derive(Debug, thiserror::Error)]
#[error("the thread `{name}` failed: {cause}")]
pub struct ThreadError {
    name: &'static str,
    cause: String,
}

/// Runs at most one task at a time.
#[derive(Debug)]
pub struct Background<E> {
    name: &'static str,
    in_flight: Option<JoinHandle<Result<(), E>>>,
}

impl<E: From<ThreadError> + Send + 'static> Background<E> {
    /// Creates an instance without a task; `name` is the name of its threads.
    pub fn new(name: &'static str) -> Self {
        Self { name, in_flight: None }
    }

    /// Waits for the task in flight, then starts `task`.
    ///
    /// # Errors
    /// The previous task failed, or the thread cannot be started.
    pub fn begin(
        &mut self,
        task: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<(), E> {
        self.wait()?;
        let thread = std::thread::Builder::new().name(self.name.to_owned()).spawn(task);
        self.in_flight = Some(
            thread.map_err(|error| ThreadError { name: self.name, cause: error.to_string() })?,
        );
        Ok(())
    }

    /// Checks the task in flight without blocking.
    ///
    /// # Errors
    /// The task in flight has failed.
    pub fn check(&mut self) -> Result<(), E> {
        if self.in_flight.as_ref().is_some_and(JoinHandle::is_finished) {
            self.wait()
        } else {
            Ok(())
        }
    }

    /// Waits for the task in flight. Tasks must have deadlines.
    ///
    /// # Errors
    /// The task failed or panicked.
    pub fn wait(&mut self) -> Result<(), E> {
        match self.in_flight.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                Err(ThreadError { name: self.name, cause: "it panicked".to_owned() }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Background, ThreadError};

    #[test]
    fn an_error_is_returned_once_and_the_next_task_can_start() {
        let mut background = Background::<ThreadError>::new("writer");
        background
            .begin(|| Err(ThreadError { name: "writer", cause: "no room".to_owned() }))
            .unwrap();
        assert_eq!(
            background.begin(|| Ok(())).unwrap_err().to_string(),
            "the thread `writer` failed: no room"
        );
        background.begin(|| Ok(())).unwrap();
        background.wait().unwrap();
        background.check().unwrap();
    }
}
