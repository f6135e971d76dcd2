//! Tokenization and decoding of a session: short texts at once, others on a blocking thread.

use crate::work_error::WorkError;

/// Largest text in bytes, or completion in tokens, that is handled at once: a switch of threads
/// takes longer than its tokenization, of tenths of a millisecond.
pub const SHORT: usize = 1024;

/// Runs work on a text of `size` bytes or tokens.
pub async fn text_work<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    if size <= SHORT {
        return Ok(work());
    }
    Ok(tokio::task::spawn_blocking(work).await?)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{SHORT, text_work};

    #[tokio::test]
    async fn short_texts_stay_on_their_thread() {
        let here = thread::current().id();
        for (size, stays) in [(0, true), (SHORT, true), (SHORT + 1, false)] {
            let ran = text_work(size, || thread::current().id()).await.unwrap();
            assert_eq!(ran == here, stays, "{size}");
        }
    }
}
