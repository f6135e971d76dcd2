//! Tests of prompts with the first observation of an environment.

use rljob_crds::data::TrainDataset;
use serde_json::json;

use super::{File, tokenizer};
use crate::data::{Dataset, KeptFields};

fn open(spec: &TrainDataset) -> Dataset {
    Dataset::open_train(spec, &tokenizer(), 1, &KeptFields::None).unwrap()
}

#[test]
fn an_observed_prompt_is_that_of_a_row_which_ends_with_the_observation() {
    let (start, whole) = (File::new("{\"q\": \"27+\"}\n"), File::new("{\"q\": \"27+58=\"}\n"));
    for format in ["Text", "Chat"] {
        let data = |file: &File| {
            let spec = json!({
                "path": file.path(), "prompt": "{{q}}", "system": "Add.", "format": format,
            });
            open(&serde_json::from_value(spec).unwrap())
        };
        let (observed, expected) = (data(&start).observed(0, "58="), data(&whole).prompt(0));
        let (observed, expected) = (observed.unwrap(), expected.unwrap());
        assert_eq!((observed.text, observed.tokens), (expected.text, expected.tokens), "{format}");
    }
}

#[test]
fn the_last_message_of_a_conversation_ends_with_the_observation() {
    let row = |last: &str| {
        let messages = json!([
            {"role": "user", "content": "Play."}, {"role": "assistant", "content": "Ready."},
            {"role": "user", "content": last},
        ]);
        File::new(&(json!({ "chat": messages }).to_string() + "\n"))
    };
    let data = |file: &File| {
        let spec = json!({"path": file.path(), "conversation": {"messages": "chat"}});
        open(&serde_json::from_value(spec).unwrap())
    };
    let (start, whole) = (row("Maze."), row("Maze. A wall."));
    let observed = data(&start).observed(0, " A wall.").unwrap();
    let expected = data(&whole).prompt(0).unwrap();
    assert_eq!((observed.text, observed.tokens), (expected.text, expected.tokens));
}
