//! Pause of an engine before a weight update (docs/decisions/0016).
//!
//! ```text
//!  no new streams ─▶ abort_request ─▶ streams end ─▶ pause_generation
//!                      ▲        │ after REPEAT
//!                      └────────┘
//! ```
//! SGLang's pause ends running requests too, and sleeps for a second if there are any. It remains
//! the fallback for streams that do not end in time. With `runningCompletions: Finish`,
//! completions may end first.

use std::time::Duration;

use rljob_crds::job::RunningCompletions;

use super::phases::Phase;
use super::{Target, WeightSync};
use crate::engines::{EngineClient, EngineError, check_epoch};

/// Time for completions to end. The sender of a broadcast waits for 120 s.
const FINISH_LIMIT: Duration = Duration::from_secs(90);
/// Time for the streams to end. Aborted requests end with the next decode step.
const LIMIT: Duration = Duration::from_secs(2);
/// Time after which requests are aborted again: one that was on its way may have arrived since.
const REPEAT: Duration = Duration::from_millis(100);

/// Ends all requests of the engine, which keep their tokens, and holds new ones.
pub(super) async fn pause(sync: &WeightSync, target: &Target) -> Result<(), EngineError> {
    let (client, url) = (&sync.fleet.client, target.url.as_str());
    if sync.running == RunningCompletions::Finish
        && tokio::time::timeout(FINISH_LIMIT, target.streams.ended()).await.is_err()
    {
        tracing::warn!(url, "completions did not end in time; they are interrupted");
    }
    check_epoch(&sync.fence).await?;
    if let Ok(aborted) = tokio::time::timeout(LIMIT, abort_all(client, target)).await {
        aborted?;
    } else {
        tracing::warn!(url, "requests did not end in time; the pause waits for them");
    }
    check_epoch(&sync.fence).await?;
    client.pause(url).await?;
    target.phases.end(Phase::Pause, sync.clock.now());
    Ok(())
}

/// Aborts requests until no stream is open.
async fn abort_all(client: &EngineClient, target: &Target) -> Result<(), EngineError> {
    loop {
        client.abort_all(&target.url).await?;
        if tokio::time::timeout(REPEAT, target.streams.ended()).await.is_ok() {
            return Ok(());
        }
    }
}
