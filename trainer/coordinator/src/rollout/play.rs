//! Episodes of one prompt, side by side: of turns that the workflow appends, or of agents.

use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::agent::Agents;
use super::episode::Episode;
use super::episodes::Episodes;
use super::sampler::SampleRequest;
use crate::data::Prompt;
use crate::work_error::WorkError;

/// Episodes as they end, each with the index of its sample.
pub type Played<'p> = BoxStream<'p, (u32, Result<Episode, WorkError>)>;

/// Plays the wanted samples of a prompt. A slow verifier or agent does not delay the others. Also
/// returns the engine of the first completions, if they share one.
pub async fn play<'p>(
    episodes: &'p Episodes<'_>,
    agents: Option<&'p Agents>,
    prompt: &'p Prompt,
    wanted: &'p [SampleRequest],
) -> (Played<'p>, Option<String>) {
    let Episodes { sampler, weights, .. } = episodes;
    if let Some(agents) = agents {
        let play = move |request: &'p SampleRequest| async move {
            (request.key.index, agents.episode(episodes, prompt, request).await)
        };
        let played = futures::stream::iter(wanted).map(play).buffer_unordered(wanted.len());
        return (played.boxed(), None);
    }
    if let Some(environment) = episodes.input.workflow.environment() {
        let play = move |request: &'p SampleRequest| async move {
            (request.key.index, episodes.in_environment(environment, prompt, request).await)
        };
        let played = futures::stream::iter(wanted).map(play).buffer_unordered(wanted.len());
        return (played.boxed(), None);
    }
    let lease = sampler.lease(*weights, &prompt.tokens, wanted).await;
    let engine = lease.engine.name.clone();
    let completions = sampler.group(lease, *weights, &prompt.tokens, wanted);
    let finish = move |(request, first): (SampleRequest, _)| async move {
        (request.key.index, episodes.finish(prompt, &request, first, None).await)
    };
    (completions.map(finish).buffer_unordered(wanted.len()).boxed(), Some(engine))
}
