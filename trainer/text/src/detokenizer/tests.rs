//! Tests of incremental detokenization.

use std::path::Path;

use serde_json::json;

use super::*;

fn byte_level() -> TextTokenizer {
    TextTokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-chat"))
        .unwrap()
}

/// A tokenizer as Llama 2's: words begin with `▁`, and bytes are tokens.
fn byte_fallback(vocabulary: &[&str]) -> TextTokenizer {
    let folder = tempfile::tempdir().unwrap();
    let ids: serde_json::Map<_, _> =
        vocabulary.iter().zip(0..).map(|(&token, id)| (token.to_owned(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": ids, "merges": [], "byte_fallback": true},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    TextTokenizer::open(folder.path()).unwrap()
}

/// All lists of `length` of the tokens.
fn lists(tokens: &[i64], length: u32) -> impl Iterator<Item = Vec<i64>> + '_ {
    (0..tokens.len().pow(length)).map(move |number| {
        (0..length).map(|place| tokens[number / tokens.len().pow(place) % tokens.len()]).collect()
    })
}

/// Asserts that the text of any tokens begins with what was settled after each of them, and that
/// settled tokens have the settled text.
fn assert_settled(tokenizer: &TextTokenizer, tokens: &[i64], length: u32) {
    for ids in lists(tokens, length) {
        let whole = tokenizer.decode(&ids).unwrap();
        let mut detokenizer = Detokenizer::new(&[], true);
        for id in &ids {
            detokenizer.push(tokenizer, &[*id]).unwrap();
            let (text, count) = detokenizer.settled();
            assert!(whole.starts_with(text), "{ids:?}: {whole:?} {text:?}");
            assert_eq!(tokenizer.decode(&ids[..count]).unwrap(), text, "{ids:?}");
        }
        assert_eq!(detokenizer.whole(), whole);
    }
}

#[test]
fn incremental_text_equals_whole_text_and_contains_no_partial_character() {
    let tokenizer = byte_level();
    let text = " a number — bitte: 漢字, é! 🙂 end";
    let tokens = tokenizer.encode(text).unwrap();
    let prompt = tokenizer.encode("Generation with").unwrap();
    let mut detokenizer = Detokenizer::new(&prompt, true);
    for token in &tokens {
        detokenizer.push(&tokenizer, &[*token]).unwrap();
        assert!(text.starts_with(&detokenizer.so_far()), "{}", detokenizer.so_far());
    }
    assert_eq!((detokenizer.so_far().as_str(), detokenizer.whole().as_str()), (text, text));
    assert_eq!(detokenizer.settled(), (text, tokens.len()));
    let mut at_once = Detokenizer::new(&prompt, true);
    at_once.push(&tokenizer, &tokens).unwrap();
    assert_eq!(at_once.whole(), text);
}

#[test]
fn no_later_token_changes_settled_text() {
    let tokenizer = byte_level();
    let end = tokenizer.stop_token_ids()[0];
    let bytes = tokenizer.encode("🙂 a").unwrap();
    assert_settled(&tokenizer, &[bytes.as_slice(), &[end]].concat(), 4);
    let vocabulary = ["<s>", "<0x0A>", "<0xE2>", "<0x82>", "<0xAC>", "▁", "▁a", "b"];
    let tokenizer = byte_fallback(&vocabulary);
    assert_settled(&tokenizer, &[0, 1, 2, 3, 4, 5, 6, 7], 5);
    assert_eq!(tokenizer.decode(&[6, 2, 3, 0, 4, 1]).unwrap(), "a€\n");
}

#[test]
fn text_ends_before_a_string_and_before_what_may_begin_one() {
    let strings = ["</answer>", "\n\n", "é!"];
    for (text, from, end) in [
        ("no end", 0, 6),
        ("4 </answer> 5", 0, 2),
        ("4 </ans", 0, 2),
        ("4 </answers", 0, 11),
        ("a\n", 0, 1),
        ("a\nb\n\n", 0, 3),
        ("é", 0, 0),
        ("né", 1, 1),
        ("</answer>", 1, 9),
        ("ab", 2, 2),
    ] {
        assert_eq!(end_before(text, from, strings.into_iter()), end, "{text:?}");
    }
    assert_eq!(end_before("any text", 0, std::iter::empty()), 8);
}
