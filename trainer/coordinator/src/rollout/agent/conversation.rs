//! Conversations of a session: a tree of completions. Pure.
//!
//! ```text
//!  prompt ─▶ completion 0 ─┬─ messages ─▶ completion 1
//!                          └─ messages ─▶ completion 2 ─▶ …        another branch
//!  other prompt ─▶ completion 3                                    another conversation
//! ```
//!
//! A request continues the completion whose messages it repeats, the model's own included: the
//! exact tokens so far are its prompt.

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
    /// Messages since the parent.
    pub messages: Vec<Message>,
    /// Tools of the request. Those of the first completion are in the prompt.
    pub tools: Tools,
    /// Content of the assistant's message in the response.
    pub text: String,
    /// Calls of that message.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens since the parent.
    pub given: Vec<i64>,
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

    /// The completion that the messages continue, and the number of messages up to it: the longest
    /// prefix, and of several equal ones the newest. Its prompt has the same tools.
    pub fn continued(&self, messages: &[Message], tools: &Tools) -> Option<(usize, usize)> {
        let matches = (0..self.nodes.len()).filter_map(|index| {
            let first = self.path(index).first().map(|node| &node.tools);
            let length = self.matching(index, messages).filter(|_| first == Some(tools))?;
            (length < messages.len()).then_some((index, length))
        });
        matches.max_by_key(|&(index, length)| (length, self.nodes.get(index).map(|n| n.number)))
    }

    /// Number of messages through the completion if these begin with them.
    fn matching(&self, index: usize, messages: &[Message]) -> Option<usize> {
        let mut rest = messages;
        for node in self.path(index) {
            rest = rest.strip_prefix(node.messages.as_slice())?;
            let (own, after) = rest.split_first()?;
            if own.role != "assistant"
                || own.content != node.text
                || own.tool_calls != node.tool_calls
            {
                return None;
            }
            rest = after;
        }
        messages.len().checked_sub(rest.len())
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
mod tests {
    use rljob_protocol::version::Version;

    use super::*;
    use crate::persistence::journal::VersionRun;
    use crate::rollout::completion::Completion;
    use crate::rollout::request::{Key, Purpose, Sampling, parameters};
    use crate::text::Tool;

    fn sampled(tokens: &[i64]) -> Sampled {
        let sampling = Sampling {
            run_seed: Some(1),
            stop_token_ids: &[2],
            stop: &[],
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
        };
        let key = Key { purpose: Purpose::Rollout, step: 1, position: 0, index: 0, turn: 0 };
        let version = Version { step: 1, attempt: 0 };
        Sampled {
            parameters: parameters(key, &sampling, 0, 6),
            completion: Completion {
                tokens: tokens.to_vec(),
                logprobs: vec![-1.0; tokens.len()],
                versions: vec![VersionRun { version, tokens: tokens.len() as u32 }],
                finish_reason: Some("stop"),
            },
            engine: "engine-0".to_owned(),
        }
    }

    fn node(number: u32, parent: Option<usize>, asked: &str, text: &str) -> Node {
        let base = i64::from(number) * 10;
        Node {
            number,
            parent,
            id: format!("c-{number}"),
            choice: 0,
            messages: vec![Message::user(asked)],
            tools: Tools::default(),
            text: text.to_owned(),
            tool_calls: Vec::new(),
            given: vec![base, base + 1],
            sampled: sampled(&[base + 2]),
            reward: None,
        }
    }

    fn said(messages: &[&str]) -> Vec<Message> {
        let role = |index: usize| if index.is_multiple_of(2) { "user" } else { "assistant" };
        let message = |(index, text): (usize, &&str)| Message::new(role(index), *text);
        messages.iter().enumerate().map(message).collect()
    }

    /// "1+1" → "3", then "no" → "2" and, in a branch, "sure?" → "yes"; and "2+2" → "4".
    fn conversations() -> Conversations {
        let mut all = Conversations::default();
        all.add(node(0, None, "1+1", "3"));
        all.add(node(1, Some(0), "no", "2"));
        all.add(node(2, Some(0), "sure?", "yes"));
        all.add(node(3, None, "2+2", "4"));
        all
    }

    #[test]
    fn messages_continue_the_longest_conversation_that_they_repeat() {
        let all = conversations();
        for (messages, expected) in [
            (&["1+1", "3", "again"][..], Some((0, 2))),
            (&["1+1", "3", "no", "2", "thanks"], Some((1, 4))),
            (&["1+1", "3", "sure?", "yes", "thanks"], Some((2, 4))),
            (&["1+1", "3", "no", "5", "thanks"], Some((0, 2))),
            (&["1+1", "2", "again"], None),
            (&["1+1"], None),
            (&["2+2", "4", "x"], Some((3, 2))),
        ] {
            assert_eq!(all.continued(&said(messages), &Tools::default()), expected, "{messages:?}");
        }
        let mut system = said(&["1+1", "3", "again"]);
        system[0].role = "system".to_owned();
        assert_eq!(all.continued(&system, &Tools::default()), None);
    }

    #[test]
    fn a_conversation_with_calls_is_continued_by_equal_calls_and_tools() {
        let call = |sum: u32| ToolCall {
            name: "add".to_owned(),
            arguments: serde_json::Map::from_iter([("sum".to_owned(), sum.into())]),
        };
        let tools: Tools = [Tool::new("add", "Adds.", &())].into_iter().collect();
        let mut all = Conversations::default();
        let calls =
            Node { tools: tools.clone(), tool_calls: vec![call(2)], ..node(0, None, "1+1", "") };
        all.add(calls);
        let said = |call: ToolCall| {
            let calls = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
            [Message::user("1+1"), calls, Message::tool("2")]
        };
        assert_eq!(all.continued(&said(call(2)), &tools), Some((0, 2)));
        assert_eq!(all.continued(&said(call(3)), &tools), None);
        assert_eq!(all.continued(&said(call(2)), &Tools::default()), None);
    }

    #[test]
    fn a_continued_conversation_has_the_exact_tokens_of_its_branch() {
        let all = conversations();
        assert_eq!(all.tokens(2), (vec![0, 1, 2, 20, 21, 22], 2));
        assert_eq!(all.tokens(3), (vec![30, 31, 32], 2));
        let numbers = |index| all.path(index).iter().map(|node| node.number).collect::<Vec<_>>();
        assert_eq!((numbers(1), numbers(2)), (vec![0, 1], vec![0, 2]));
        let taken: Vec<u32> = conversations().take(2).iter().map(|node| node.number).collect();
        assert_eq!(taken, [0, 2]);
    }

    #[test]
    fn the_last_completion_is_the_first_choice_of_the_newest_request() {
        let mut all = conversations();
        assert_eq!(all.last(), Some(3));
        all.add(Node { id: "c-4".to_owned(), choice: 1, ..node(5, Some(3), "x", "b") });
        all.add(Node { id: "c-4".to_owned(), choice: 0, ..node(4, Some(3), "x", "a") });
        assert_eq!((all.last(), all.find("c-4", 1), all.find("c-4", 2)), (Some(5), Some(4), None));
        // Of equal answers to equal messages the newest is continued.
        all.add(node(6, Some(3), "x", "a"));
        assert_eq!(
            all.continued(&said(&["2+2", "4", "x", "a", "y"]), &Tools::default()),
            Some((6, 4))
        );
        assert_eq!(Conversations::default().last(), None);
    }
}
