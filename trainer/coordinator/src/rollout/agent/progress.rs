//! Progress of a session: places requests in its conversations, and records completions, rewards
//! and the end. Pure.

use super::conversation::{Conversations, Node};
use crate::proxy::answer::Completed;
use crate::proxy::error::ProxyError;
use crate::proxy::request::{Asked, CompletionId, CompletionRequest};
use crate::proxy::{Answer, Call};

/// Progress of a session.
#[derive(Debug, Default)]
pub struct Progress {
    pub conversations: Conversations,
    /// Completions that were requested.
    pub requested: u32,
    /// Reward of the session.
    pub reward: Option<f64>,
    /// Completion that ends the sample, if the agent selected one.
    pub selected: Option<usize>,
    /// Completion after which `maxTurns` or `maxTokens` rejected the last request.
    pub limited: Option<usize>,
}

/// Sampled completions and their response.
pub type Sampling = Result<(Vec<Node>, Completed), ProxyError>;

/// A request whose place in the session is known.
#[derive(Debug)]
pub struct Planned {
    /// Number of its first completion.
    pub number: u32,
    pub parent: Option<usize>,
    /// Tokens of the conversation so far, and length of its first prompt.
    pub so_far: (Vec<i64>, usize),
    /// Tokens of the last completion, and its engine.
    pub last: Option<(Vec<i64>, String)>,
    /// The request without what it repeats.
    pub request: CompletionRequest,
}

impl Progress {
    /// Answers a call, or returns the plan of its completions. A client that has gone gets no
    /// answer.
    pub fn answer(&mut self, max_turns: u32, call: Call) -> Option<(Planned, Answer)> {
        match call {
            Call::Complete(request, answer) => match self.plan(max_turns, request) {
                Ok(planned) => return Some((planned, answer)),
                Err(error) => drop(answer.reply.send(Err(error))),
            },
            Call::Reward(reward, of, reply) => drop(reply.send(self.set_reward(reward, of))),
            Call::Finish(at, reply) => drop(reply.send(self.finish(at))),
        }
        None
    }

    /// Assigns the request its place.
    fn plan(
        &mut self,
        max_turns: u32,
        mut request: CompletionRequest,
    ) -> Result<Planned, ProxyError> {
        let (asked, named) = self.whole(&request)?;
        let through = |index| self.conversations.length_through(index, &asked, &request.tools);
        let named = named.and_then(|index| Some((index, through(index)?)));
        let continued = named.or_else(|| self.conversations.continued(&asked, &request.tools));
        let number = self.requested;
        let requested = number.saturating_add(request.n);
        if requested > max_turns {
            self.limited = continued.map(|(index, _)| index);
            return Err(ProxyError::Turns(max_turns));
        }
        self.requested = requested;
        request.asked = asked.split_off(continued.map_or(0, |(_, length)| length));
        let parent = continued.map(|(index, _)| index);
        let so_far = parent.map(|index| self.conversations.tokens(index)).unwrap_or_default();
        let last = parent
            .and_then(|index| self.conversations.get(index))
            .map(|node| (node.sampled.completion.tokens.clone(), node.sampled.engine.clone()));
        Ok(Planned { number, parent, so_far, last, request })
    }

    /// What the model continues, with the conversation of the response that a request names, and
    /// the completion of that response.
    fn whole(&self, request: &CompletionRequest) -> Result<(Asked, Option<usize>), ProxyError> {
        let asked = request.asked.clone();
        let (Some(previous), Asked::Messages(messages)) = (&request.context.previous, &asked)
        else {
            return Ok((asked, None));
        };
        let found = self.conversations.find(previous, 0);
        let before = found.and_then(|index| self.conversations.messages(index));
        let before = before.ok_or_else(|| {
            let message = format!("`{previous}` is no response of this session");
            ProxyError::parameter("previous_response_id", message)
        })?;
        let instructions = usize::from(request.context.instructed);
        let (instructions, input) = messages.split_at(instructions.min(messages.len()));
        Ok((Asked::Messages([instructions, &before, input].concat()), found))
    }

    /// Adds the completions of a request that continues `parent`.
    pub fn record(
        &mut self,
        parent: Option<usize>,
        sampling: Sampling,
    ) -> Result<Completed, ProxyError> {
        if matches!(sampling, Err(ProxyError::NoRoom { .. })) {
            self.limited = parent;
        }
        let (nodes, completed) = sampling?;
        for node in nodes {
            self.conversations.add(node);
        }
        Ok(completed)
    }

    /// Sets the reward of a completion or of the session.
    fn set_reward(&mut self, reward: f64, of: Option<CompletionId>) -> Result<(), ProxyError> {
        match of {
            None => self.reward = Some(reward),
            Some(of) => {
                let index = self.find(&of)?;
                if let Some(node) = self.conversations.get_mut(index) {
                    node.reward = Some(reward);
                }
            }
        }
        Ok(())
    }

    /// Selects the completion that ends the sample; by default the last one.
    fn finish(&mut self, at: Option<CompletionId>) -> Result<(), ProxyError> {
        self.selected = at.map(|at| self.find(&at)).transpose()?;
        Ok(())
    }

    fn find(&self, of: &CompletionId) -> Result<usize, ProxyError> {
        let found = self.conversations.find(&of.id, of.choice);
        found.ok_or_else(|| ProxyError::UnknownCompletion(format!("{}[{}]", of.id, of.choice)))
    }
}
