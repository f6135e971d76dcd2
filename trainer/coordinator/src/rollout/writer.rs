//! Journal writer of finished samples: several per transaction.

use tokio::sync::mpsc;

use super::group::Queued;
use crate::persistence::journal::shared::SharedJournal;
use crate::work_error::WorkError;

/// Maximum number of samples in a journal call.
const WRITE: usize = 512;

/// Writes queued samples until all senders are dropped.
pub async fn write(
    journal: &SharedJournal,
    mut receiver: mpsc::Receiver<Queued>,
) -> Result<(), WorkError> {
    let mut queued = Vec::with_capacity(WRITE);
    while receiver.recv_many(&mut queued, WRITE).await > 0 {
        let (samples, written): (Vec<_>, Vec<_>) = queued.drain(..).unzip();
        journal.call(move |journal| journal.put_samples(&samples)).await?;
        for waiting in written {
            // A closed receiver was cancelled.
            let _ = waiting.send(());
        }
    }
    Ok(())
}
