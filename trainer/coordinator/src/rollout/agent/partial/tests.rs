//! Tests of completions while they are sampled.

use std::path::Path;

use super::*;
use crate::proxy::answer::Choice;

fn tokenizer() -> TextTokenizer {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat");
    TextTokenizer::open(&fixture).unwrap()
}

fn live(ids: &[i64]) -> LiveTokens {
    LiveTokens { ids: ids.to_vec(), logprobs: ids.iter().map(|id| -(*id as f32)).collect() }
}

/// What is published after each token of a text.
fn published(text: &str, stop: &[&str], format: Option<ToolCallFormat>) -> Vec<Choice> {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode(text).unwrap();
    let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
    let details = Details { logprobs: true, token_ids: true };
    let choice =
        Choice { logprobs: Some(Vec::new()), token_ids: Some(Vec::new()), ..Choice::default() };
    let (partial, _reader) =
        watch::channel(Completed { choices: vec![choice], ..Completed::default() });
    let reading = Reading { tokenizer: tokenizer.clone(), stop, format, details };
    let mut own = PartialChoice::new(reading, &partial, 0);
    let mut all = Vec::new();
    for count in 1..=ids.len() {
        own.take(&live(&ids[..count])).unwrap();
        let choice = partial.borrow().choices[0].clone();
        assert_eq!(choice.token_ids.as_deref(), ids.get(..choice.tokens));
        let LiveTokens { ids, logprobs } = live(&ids[..choice.tokens]);
        assert_eq!(choice.logprobs, Some(token_logprobs(&tokenizer, &ids, &logprobs).unwrap()));
        all.push(choice);
    }
    all
}

fn last(text: &str, stop: &[&str], format: Option<ToolCallFormat>) -> String {
    published(text, stop, format).pop().unwrap().text
}

#[test]
fn text_is_published_token_by_token_without_parts_of_characters() {
    let text = " a number — bitte: 漢字, é! 🙂 end";
    let all = published(text, &[], None);
    let tokens = tokenizer().encode(text).unwrap();
    assert_eq!((all.len(), all.last().unwrap().text.as_str()), (tokens.len(), text));
    assert!(all.iter().all(|choice| text.starts_with(&choice.text)));
    let mut lengths: Vec<usize> = all.iter().map(|choice| choice.text.len()).collect();
    lengths.dedup();
    assert!(lengths.len() > tokens.len() / 2, "{lengths:?}");
}

#[test]
fn text_from_a_stop_string_on_is_not_published() {
    let text = "x = 4 </answer> and more";
    for (stop, expected) in [
        (&["</answer>"][..], "x = 4 "),
        (&["</answer> and less"], "x = 4 </answer> and more"),
        (&["</answer> and more!"], "x = 4 "),
        (&["never", "= 4", "4"], "x "),
    ] {
        let all = published(text, stop, None);
        assert!(all.iter().all(|choice| expected.starts_with(&choice.text)), "{stop:?}");
        assert_eq!(all.last().unwrap().text, expected, "{stop:?}");
    }
}

#[test]
fn text_of_a_request_with_tools_is_published_until_a_call_may_begin() {
    let call = "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(last(call, &[], Some(ToolCallFormat::Qwen)), "I add.");
    assert_eq!(last(" I add", &[], Some(ToolCallFormat::Qwen)), "");
    assert_eq!(last("I add", &["add"], Some(ToolCallFormat::Qwen)), "I ");
    assert_eq!(last("{\"name\"", &[], Some(ToolCallFormat::Llama)), "");
    assert_eq!(last("Sum: {1}", &[], Some(ToolCallFormat::Llama)), "Sum: {1}");
}

#[test]
fn bytes_that_are_no_character_are_read_less_and_less_often() {
    let tokenizer = tokenizer();
    let part = tokenizer.encode("🙂").unwrap()[0];
    let details = Details::default();
    let (partial, _reader) =
        watch::channel(Completed { choices: vec![Choice::default()], ..Completed::default() });
    let reading = Reading { tokenizer, stop: Vec::new(), format: None, details };
    let mut own = PartialChoice::new(reading, &partial, 0);
    let mut reads = Vec::new();
    for count in 1..=100 {
        own.take(&live(&vec![part; count])).unwrap();
        reads.push(own.read);
    }
    reads.dedup();
    assert_eq!(reads, [1, 2, 3, 4, 5, 10, 20, 40, 80]);
    assert_eq!(partial.borrow().choices[0], Choice::default());
}
