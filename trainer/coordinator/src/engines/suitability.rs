//! Suitability of an engine, from its `/server_info`. Pure.

use rljob_protocol::sglang::ServerInfo;

/// Why an engine gets no requests and no weights. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// A stream of `n` tokens would have `n²/2` of them.
    #[error(
        "the engine repeats all tokens with each new one; start it with \
         --incremental-streaming-output"
    )]
    WholeStreams,
}

/// Checks an engine.
pub fn check(info: &ServerInfo) -> Result<(), Unsuitable> {
    if !info.incremental_streaming_output {
        return Err(Unsuitable::WholeStreams);
    }
    Ok(())
}
