//! Conversations of a session: a tree of completions. Pure.
//!
//! ```text
//!  prompt ─▶ completion 0 ─┬─ messages ─▶ completion 1
//!                          └─ messages ─▶ completion 2 ─▶ …        another branch
//!  other prompt ─▶ completion 3                                    another conversation
//! ```
//!
//! A request continues the completion whose messages, text or tokens it repeats, the model's own
//! included: the exact tokens so far are its prompt.

use crate::proxy::request::Asked;
use crate::rollout::sampler::Sampled;
use crate::text::{Message, ToolCall, Tools};

/// A completion and what was given before it.
#[derive(Debug)]
pub struct Node {
    /// Number of the completion in the session, from 0.
    pub number: u32,
    /// Index in [`Conversations`] of the completion that it continues.
    pub parent: Option<usize>,
    /// `id` and index of the choice in the response.
    pub id: String,
    pub choice: u32,
    /// What the request has since the parent.
    pub asked: Asked,
    /// Whether the first message of the request has the instructions of a response.
    pub instructed: bool,
    /// Tools of the request. Those of the first completion are in the prompt.
    pub tools: Tools,
    /// Content of the assistant's message in the response.
    pub text: String,
    /// The completion as text, a stop string included.
    pub sampled_text: String,
    /// Calls of the assistant's message.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens since the parent, and their text without the chat template.
    pub given: Vec<i64>,
    pub given_text: String,
    pub sampled: Sampled,
    pub reward: Option<f64>,
}

/// The completions of a session.
#[derive(Debug, Default)]
pub struct Conversations {
    nodes: Vec<Node>,
}

impl Conversations {
    pub fn add(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// The completion that a request continues, and the length up to it in messages, bytes or
    /// tokens: the longest prefix, and of several equal ones the newest. Its prompt has the same
    /// tools.
    pub fn continued(&self, asked: &Asked, tools: &Tools) -> Option<(usize, usize)> {
        let matches = (0..self.nodes.len()).filter_map(|index| {
            let length = self.length_through(index, asked, tools)?;
            Some((index, length))
        });
        matches.max_by_key(|&(index, length)| (length, self.nodes.get(index).map(|n| n.number)))
    }

    /// Length through the completion if a request with these tools begins with it and has more.
    pub fn length_through(&self, index: usize, asked: &Asked, tools: &Tools) -> Option<usize> {
        let first = self.path(index).first().map(|node| &node.tools);
        self.matching(index, asked).filter(|_| first == Some(tools))
    }

    fn matching(&self, index: usize, asked: &Asked) -> Option<usize> {
        let (rest, length) = match asked {
            Asked::Messages(messages) => (self.after_messages(index, messages)?, messages.len()),
            Asked::Text(text) => (self.after_text(index, text)?, text.len()),
            Asked::Tokens(tokens) => (self.after_tokens(index, tokens)?, tokens.len()),
        };
        (rest > 0).then(|| length.saturating_sub(rest))
    }

    /// Number of messages after the completion.
    fn after_messages(&self, index: usize, messages: &[Message]) -> Option<usize> {
        let mut rest = messages;
        for node in self.path(index) {
            let Asked::Messages(asked) = &node.asked else { return None };
            rest = rest.strip_prefix(asked.as_slice())?;
            let (own, after) = rest.split_first()?;
            if own.role != "assistant"
                || own.content != node.text
                || own.tool_calls != node.tool_calls
            {
                return None;
            }
            rest = after;
        }
        Some(rest.len())
    }

    /// Bytes of a text after the completion, whose stop string the text has to repeat.
    fn after_text(&self, index: usize, text: &str) -> Option<usize> {
        let mut rest = text;
        for node in self.path(index) {
            let Asked::Text(asked) = &node.asked else { return None };
            rest = rest.strip_prefix(asked.as_str())?.strip_prefix(&node.sampled_text)?;
        }
        Some(rest.len())
    }

    /// Tokens after the completion.
    fn after_tokens(&self, index: usize, tokens: &[i64]) -> Option<usize> {
        let mut rest = tokens;
        for node in self.path(index) {
            rest = rest.strip_prefix(node.given.as_slice())?;
            rest = rest.strip_prefix(node.sampled.completion.tokens.as_slice())?;
        }
        Some(rest.len())
    }

    /// The messages of the conversation through a completion without the instructions of its first
    /// request; none if it is not one of messages.
    pub fn messages(&self, index: usize) -> Option<Vec<Message>> {
        let mut messages = Vec::new();
        for (at, node) in self.path(index).into_iter().enumerate() {
            let Asked::Messages(asked) = &node.asked else { return None };
            let instructions = usize::from(at == 0 && node.instructed);
            messages.extend(asked.iter().skip(instructions).cloned());
            let tool_calls = node.tool_calls.clone();
            messages.push(Message { tool_calls, ..Message::new("assistant", &node.text) });
        }
        Some(messages)
    }

    /// The completions from the first of the conversation to this one.
    pub fn path(&self, index: usize) -> Vec<&Node> {
        let mut path: Vec<&Node> =
            std::iter::successors(self.nodes.get(index), |node| self.nodes.get(node.parent?))
                .collect();
        path.reverse();
        path
    }

    /// All tokens of the conversation through a completion, and the length of its first prompt.
    pub fn tokens(&self, index: usize) -> (Vec<i64>, usize) {
        let path = self.path(index);
        let prompt = path.first().map_or(0, |node| node.given.len());
        let parts = path.iter().flat_map(|node| [&node.given, &node.sampled.completion.tokens]);
        (parts.flatten().copied().collect(), prompt)
    }

    /// The completion of a choice.
    pub fn find(&self, id: &str, choice: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id && node.choice == choice)
    }

    /// The newest completion; of several choices the first.
    pub fn last(&self) -> Option<usize> {
        let newest = self.nodes.iter().map(|node| node.number.saturating_sub(node.choice)).max()?;
        self.nodes.iter().position(|node| node.number == newest)
    }

    pub fn get(&self, index: usize) -> Option<&Node> {
        self.nodes.get(index)
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Node> {
        self.nodes.get_mut(index)
    }

    /// Removes the conversation that ends with a completion.
    pub fn take(self, index: usize) -> Vec<Node> {
        let numbers: Vec<u32> = self.path(index).iter().map(|node| node.number).collect();
        let mut path: Vec<Node> =
            self.nodes.into_iter().filter(|node| numbers.contains(&node.number)).collect();
        path.sort_by_key(|node| node.number);
        path
    }
}

#[cfg(test)]
mod tests;
