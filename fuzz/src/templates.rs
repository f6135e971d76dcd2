//! Chat templates of model folders and prompt templates of specs.

use std::path::Path;

use rljob_text::TextTokenizer;

use crate::data;
use crate::folder::{with_folder, write};
use crate::tokenizer::TOKENIZER;

/// `chat_template.jinja` of a model folder.
pub fn chat_template(data: &[u8]) {
    let prepare = |folder: &Path| write(&folder.join("model/tokenizer.json"), TOKENIZER);
    with_folder(prepare, |folder| {
        let folder = folder.join("model");
        write(&folder.join("chat_template.jinja"), data);
        let Ok(tokenizer) = TextTokenizer::open(&folder) else { return };
        let _ = tokenizer.check_chat_template();
        let _ = tokenizer.render_chat("1 + 1 = ?");
    });
}

/// `prompt` of a dataset in a spec.
pub fn prompt_template(data: &[u8]) {
    let Ok(template) = std::str::from_utf8(data) else { return };
    let rows = b"{\"q\":\"1+1\",\"a\":\"2\",\"list\":[1,2.5,null,\"x\"]}\n";
    let prepare = |folder: &Path| write(&folder.join("row.jsonl"), rows);
    with_folder(prepare, |folder| data::open(&folder.join("row.jsonl"), template));
}
