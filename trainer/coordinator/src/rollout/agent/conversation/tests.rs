//! Tests of conversations.

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
        asked: Asked::Messages(vec![Message::user(asked)]),
        instructed: false,
        tools: Tools::default(),
        text: text.to_owned(),
        sampled_text: format!("{text}."),
        tool_calls: Vec::new(),
        given: vec![base, base + 1],
        given_text: asked.to_owned(),
        sampled: sampled(&[base + 2]),
        reward: None,
    }
}

fn said(messages: &[&str]) -> Asked {
    let role = |index: usize| if index.is_multiple_of(2) { "user" } else { "assistant" };
    let message = |(index, text): (usize, &&str)| Message::new(role(index), *text);
    Asked::Messages(messages.iter().enumerate().map(message).collect())
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
    let system = [Message::new("system", "1+1"), Message::new("assistant", "3"), Message::user("")];
    assert_eq!(all.continued(&Asked::Messages(system.to_vec()), &Tools::default()), None);
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
        Asked::Messages(vec![Message::user("1+1"), calls, Message::tool("2")])
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
    // Of equal answers to equal messages the newest is continued, unless the other one is named.
    all.add(node(6, Some(3), "x", "a"));
    let (asked, tools) = (said(&["2+2", "4", "x", "a", "y"]), Tools::default());
    assert_eq!(all.continued(&asked, &tools), Some((6, 4)));
    assert_eq!(all.length_through(5, &asked, &tools), Some(4));
    assert_eq!(all.length_through(4, &asked, &tools), None);
    assert_eq!(Conversations::default().last(), None);
}

#[test]
fn a_text_continues_what_it_repeats_with_the_stop_string_and_tokens_any_conversation() {
    let mut all = conversations();
    let text = |number, parent, asked: &str, text| Node {
        asked: Asked::Text(asked.to_owned()),
        ..node(number, parent, asked, text)
    };
    all.add(text(4, None, "1+1=", "3"));
    all.add(text(5, Some(4), " no: ", "2"));
    let continued = |asked: &Asked| all.continued(asked, &Tools::default());
    for (asked, expected) in [
        ("1+1=3. again", Some((4, 6))),
        ("1+1=3. no: 2. and", Some((5, 13))),
        ("1+1=3 again", None),
        ("1+1=3.", None),
        ("1+1", None),
    ] {
        assert_eq!(continued(&Asked::Text(asked.to_owned())), expected, "{asked}");
    }
    let tokens = |tokens: &[i64]| Asked::Tokens(tokens.to_vec());
    assert_eq!(continued(&tokens(&[40, 41, 42, 50, 51, 52, 7])), Some((5, 6)));
    assert_eq!(continued(&tokens(&[0, 1, 2, 7])), Some((0, 3)));
    assert_eq!(continued(&tokens(&[0, 1, 2])), None);
    assert_eq!(continued(&tokens(&[0, 1, 3, 7])), None);
}

#[test]
fn the_messages_of_a_conversation_are_those_after_its_instructions() {
    let mut all = Conversations::default();
    let asked = vec![Message::new("system", "Add."), Message::user("1+1")];
    let instructed =
        Node { asked: Asked::Messages(asked), instructed: true, ..node(0, None, "1+1", "3") };
    all.add(instructed);
    all.add(node(1, Some(0), "no", "2"));
    all.add(Node { asked: Asked::Text("1+1=".to_owned()), ..node(2, None, "", "2") });
    let messages = |texts: &[&str]| match said(texts) {
        Asked::Messages(messages) => Some(messages),
        _ => None,
    };
    assert_eq!(all.messages(0), messages(&["1+1", "3"]));
    assert_eq!(all.messages(1), messages(&["1+1", "3", "no", "2"]));
    assert_eq!(all.messages(2), None);
}
