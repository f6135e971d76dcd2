//! Work behind the training loop's back: a thread, one piece of work at a time, whose failure comes
//! out at the loop's next look.

use std::thread::JoinHandle;

/// The thread could not be started, or did not end well.
#[derive(Debug, thiserror::Error)]
#[error("the thread `{name}` failed: {cause}")]
pub struct ThreadError {
    name: &'static str,
    cause: String,
}

/// At most one piece of work in flight.
#[derive(Debug)]
pub struct Background<E> {
    name: &'static str,
    in_flight: Option<JoinHandle<Result<(), E>>>,
}

impl<E: From<ThreadError> + Send + 'static> Background<E> {
    /// Nothing in flight; `name` is the threads'.
    pub fn new(name: &'static str) -> Self {
        Self { name, in_flight: None }
    }

    /// Begins `work` once the work before is done. Returns that one's failure, if it failed.
    pub fn begin(
        &mut self,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<(), E> {
        self.wait()?;
        let thread = std::thread::Builder::new().name(self.name.to_owned()).spawn(work);
        self.in_flight = Some(
            thread.map_err(|error| ThreadError { name: self.name, cause: error.to_string() })?,
        );
        Ok(())
    }

    /// The failure of work that has ended meanwhile; returns at once.
    pub fn check(&mut self) -> Result<(), E> {
        if self.in_flight.as_ref().is_some_and(JoinHandle::is_finished) {
            self.wait()
        } else {
            Ok(())
        }
    }

    /// Waits for the work in flight, whose own waits have deadlines.
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
    fn a_failure_comes_out_once_and_the_next_work_can_begin() {
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
